package scenarios;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;

/** The parent's end of {@link MemberMain}: what the member said so far, and its life. */
final class Member {
    private final Process process;
    private final Thread reader;
    private final List<String> events = new ArrayList<>();
    private final List<String> warnings = new ArrayList<>();
    private final List<String> values = new ArrayList<>();
    private final Set<Integer> assignment = new TreeSet<>();
    private final Set<Integer> everRevoked = new HashSet<>();
    private int rebalances;
    private int generation = -1;

    private Member(Process process) {
        this.process = process;
        this.reader = new Thread(this::read, "member");
        reader.setDaemon(true);
        reader.start();
    }

    static Member start(Map<String, String> common, String group, String topic, String... settings) throws Exception {
        List<String> command = new ArrayList<>(List.of(
                System.getProperty("java.home") + "/bin/java", "-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
                "-cp", System.getProperty("java.class.path"), MemberMain.class.getName(), group, topic));
        common.forEach((name, value) -> command.addAll(List.of(name, value)));
        command.addAll(Arrays.asList(settings));
        return new Member(new ProcessBuilder(command).redirectErrorStream(true).start());
    }

    private void read() {
        try (BufferedReader lines = new BufferedReader(new InputStreamReader(process.getInputStream()))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                take(line);
            }
        } catch (java.io.IOException e) {
            take("ended " + e);
        }
    }

    private synchronized void take(String line) {
        String[] words = line.split(" ", 2);
        String rest = words.length > 1 ? words[1] : "";
        switch (words[0]) {
            case "record":
                values.add(rest);
                return;
            case "warning":
                warnings.add("member: " + rest);
                return;
            case "generation":
                generation = Integer.parseInt(rest);
                return;
            case "assigned":
                assignment.addAll(numbers(rest));
                rebalances++;
                break;
            case "revoked":
            case "lost":
                assignment.removeAll(numbers(rest));
                everRevoked.addAll(numbers(rest));
                break;
            default:
        }
        events.add(line);
    }

    private static Set<Integer> numbers(String text) {
        Set<Integer> found = new TreeSet<>();
        for (String word : text.split(" ")) {
            if (!word.isEmpty()) {
                found.add(Integer.valueOf(word));
            }
        }
        return found;
    }

    synchronized Set<Integer> assignment() {
        return new TreeSet<>(assignment);
    }

    /** Partitions that were taken from the member at some time. */
    synchronized Set<Integer> everRevoked() {
        return new TreeSet<>(everRevoked);
    }

    /** The generation of the last rebalance that the member has completed. */
    synchronized int generation() {
        return generation;
    }

    synchronized int rebalances() {
        return rebalances;
    }

    synchronized List<String> values() {
        return new ArrayList<>(values);
    }

    synchronized List<String> warnings() {
        return new ArrayList<>(warnings);
    }

    synchronized boolean said(String beginning) {
        return events.stream().anyMatch(e -> e.startsWith(beginning));
    }

    private synchronized String story() {
        return events + " and read " + values.size() + " records";
    }

    void await(String what, Callable<Boolean> condition) throws Exception {
        try {
            Check.eventually(what, () -> {
                boolean holds = condition.call();
                Check.that(holds || process.isAlive(), "the member ended before " + what + ": " + story());
                return holds;
            });
        } catch (AssertionError e) {
            throw new AssertionError(e.getMessage() + "; the member said " + story(), e);
        }
    }

    void awaitAssignment(int... partitions) throws Exception {
        Set<Integer> wanted = new TreeSet<>();
        Arrays.stream(partitions).forEach(wanted::add);
        await("assignment " + wanted, () -> assignment().equals(wanted));
    }

    /** Closes the consumer; one that is not static leaves the group. */
    void leave() throws Exception {
        try (OutputStream end = process.getOutputStream()) {
            end.flush();
        }
        await("the end", () -> !process.isAlive());
        reader.join(Check.LIMIT_MS);
        Check.equal(0, process.exitValue(), "exit code of a member that was told to leave, which said " + story());
    }

    /** Without a word to the cluster. By its handle: the process's own method would throw away what it has said. */
    void kill() throws InterruptedException {
        process.toHandle().destroyForcibly();
        process.waitFor(Check.LIMIT_MS, TimeUnit.MILLISECONDS);
        reader.join(Check.LIMIT_MS);
    }
}
