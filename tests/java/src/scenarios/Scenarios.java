package scenarios;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.io.Reader;
import java.io.StringWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.regex.Pattern;
import java.util.stream.Collectors;

/**
 * {@code java -cp ... scenarios.Scenarios BOOTSTRAP [NAME...]}: runs scenarios in order, a line of JSON for each.
 *
 * <p>Without names they are read from standard input, a line each, so that one process serves many tests. A name may be
 * followed by a space and a file with properties that all clients of the scenario have. The exit code is 0 if all of
 * them passed. {@code group-static} names the class {@code GroupStatic}.
 */
public final class Scenarios {
    private static final long LIMIT_MS = 100_000;
    /** Logged by Kafka 4 for options of sasl.jaas.config that are the only ones that Kafka 3.9 has. */
    private static final String JAAS_OPTION = "The OAuth JAAS option client";
    private static final int SHOWN_WARNINGS = 40;

    /** With several brokers the one that a client asks may not have heard of a new topic yet. */
    private static final String LAGGING_BROKER = "(Error while fetching metadata|reported a recoverable issue)"
            + ".*=(UNKNOWN_TOPIC_OR_PARTITION|LEADER_NOT_AVAILABLE)"
            + "|PartitionLeaderStrategy.*Received unknown topic error for topic java-";

    private final String bootstrap;
    private final WarningLog log = WarningLog.install();

    private Scenarios(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    public static void main(String[] args) throws Exception {
        Scenarios runner = new Scenarios(args[0]);
        boolean passed = true;
        if (args.length > 1) {
            for (String name : Arrays.asList(args).subList(1, args.length)) {
                passed &= runner.run(name);
            }
        } else {
            BufferedReader names = new BufferedReader(new InputStreamReader(System.in));
            for (String name = names.readLine(); name != null; name = names.readLine()) {
                passed &= runner.run(name.strip());
            }
        }
        System.exit(passed ? 0 : 1);
    }

    /** In a thread of its own, so that one that hangs is shown where it hangs; then nothing more can be run. */
    private boolean run(String name) throws InterruptedException {
        long started = System.nanoTime();
        Throwable[] failure = new Throwable[1];
        List<String> warnings = new ArrayList<>();
        Thread thread = new Thread(() -> failure[0] = outcome(name, warnings), "scenario");
        thread.start();
        thread.join(LIMIT_MS);
        if (thread.isAlive()) {
            AssertionError hung = new AssertionError("still running after " + LIMIT_MS + " ms");
            hung.setStackTrace(thread.getStackTrace());
            tell(name, hung, log.take(), started);
            Runtime.getRuntime().halt(1);
        }
        tell(name, failure[0], warnings, started);
        return failure[0] == null;
    }

    /** What went wrong, or null. */
    private Throwable outcome(String request, List<String> warnings) {
        String[] words = request.split(" ", 2);
        log.take();
        Throwable failure = null;
        List<String> expected = List.of();
        try (Cluster cluster = new Cluster(common(words.length > 1 ? words[1] : null))) {
            Scenario scenario = find(words[0]);
            expected = new ArrayList<>(scenario.expectedWarnings());
            expected.add(JAAS_OPTION);
            if (scenario.isConnected() && Cluster.get(cluster.admin.describeCluster().nodes()).size() > 1) {
                expected.add(LAGGING_BROKER);
            }
            try {
                scenario.run(cluster);
            } finally {
                warnings.addAll(cluster.memberWarnings());
            }
        } catch (Throwable e) {
            failure = e;
        }
        warnings.addAll(log.take());
        List<Pattern> patterns = expected.stream().map(Pattern::compile).collect(Collectors.toList());
        warnings.removeIf(line -> patterns.stream().anyMatch(p -> p.matcher(line).find()));
        Map<String, Long> counts = warnings.stream().collect(
                Collectors.groupingBy(line -> line, LinkedHashMap::new, Collectors.counting()));
        warnings.clear();
        counts.forEach((line, count) -> warnings.add(count == 1 ? line : count + " times: " + line));
        if (failure == null && !warnings.isEmpty()) {
            failure = new AssertionError("everything held, but the client logged warnings");
        }
        return failure;
    }

    private Map<String, String> common(String file) throws IOException {
        Map<String, String> common = new HashMap<>(Map.of("bootstrap.servers", bootstrap));
        if (file != null) {
            Properties properties = new Properties();
            try (Reader text = Files.newBufferedReader(Path.of(file))) {
                properties.load(text);
            }
            properties.stringPropertyNames().forEach(name -> common.put(name, properties.getProperty(name)));
        }
        return common;
    }

    private static Scenario find(String name) throws ReflectiveOperationException {
        String simple = Arrays.stream(name.split("-"))
                .map(part -> part.substring(0, 1).toUpperCase() + part.substring(1))
                .collect(Collectors.joining());
        return (Scenario) Class.forName("scenarios." + simple).getDeclaredConstructor().newInstance();
    }

    static void tell(String name, Throwable failure, List<String> warnings, long started) {
        StringBuilder line = new StringBuilder("{\"scenario\":").append(quoted(name));
        line.append(",\"passed\":").append(failure == null);
        line.append(",\"ms\":").append((System.nanoTime() - started) / 1_000_000);
        line.append(",\"failure\":").append(failure == null ? "null" : quoted(trace(failure)));
        line.append(",\"warnings\":[").append(warnings.stream()
                .limit(SHOWN_WARNINGS).map(Scenarios::quoted).collect(Collectors.joining(",")));
        System.out.println(line.append("]}"));
        System.out.flush();
    }

    private static String trace(Throwable failure) {
        StringWriter text = new StringWriter();
        failure.printStackTrace(new PrintWriter(text));
        return text.toString();
    }

    private static String quoted(String text) {
        StringBuilder out = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < ' ' || c > '~') {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        return out.append('"').toString();
    }
}
