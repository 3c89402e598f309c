package scenarios;

/** One documented behaviour of consumer groups, share groups or their administration. */
interface GroupCheck {
    /** Returns when the behaviour holds, throws what did not. */
    void run(GroupWorld world) throws Exception;

    /** Checks of one subject, by name. */
    interface Group {
        void addTo(java.util.Map<String, GroupCheck> checks);
    }
}
