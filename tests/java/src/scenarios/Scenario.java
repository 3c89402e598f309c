package scenarios;

import java.util.List;

/** What kafka-clients must be able to do with a cluster: one class each, found by its name. */
interface Scenario {
    /** Returns when everything held, throws what did not. */
    void run(Cluster cluster) throws Exception;

    /** Whether the cluster accepts connections with the scenario's properties. */
    default boolean isConnected() {
        return true;
    }

    /**
     * Regular expressions for warnings that this scenario provokes. Any other line that the client logs at WARN or
     * above fails the scenario: a client that copes with a strange answer often says so nowhere else.
     */
    default List<String> expectedWarnings() {
        return List.of();
    }
}
