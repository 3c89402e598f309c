package scenarios;

import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

/**
 * {@code java -cp ... scenarios.GroupChecks BOOTSTRAP THREADS [NAME...]}: runs the checks of groups, several at a time,
 * since most of their time is that of timers. Prints a line of JSON for each. Without a name it runs all of them, and
 * {@code --list} prints their names.
 */
public final class GroupChecks {
    private static final List<GroupCheck.Group> GROUPS = List.of(
            new ShareLockChecks(), new ConsumerMemberChecks(), new ConsumerPatternChecks(), new ConsumerOffsetChecks(),
            new MigrationChecks(), new ShareImplicitChecks(), new ShareExplicitChecks(), new ShareAcquireChecks(),
            new ShareStartChecks(), new ShareMisuseChecks(), new ShareAdminChecks(), new ShareOffsetChecks(),
            new ConsumerAdminChecks(), new GroupConfigChecks());
    private static final long LIMIT_MINUTES = 15;

    private GroupChecks() {}

    public static void main(String[] args) throws Exception {
        WarningLog.install();
        Map<String, GroupCheck> all = new LinkedHashMap<>();
        GROUPS.forEach(group -> group.addTo(all));
        if (args[0].equals("--list")) {
            new TreeSet<>(all.keySet()).forEach(System.out::println);
            return;
        }
        List<String> named = Arrays.asList(args).subList(2, args.length);
        Check.that(all.keySet().containsAll(named), "not all of these are checks: " + named);
        ExecutorService threads = Executors.newFixedThreadPool(Integer.parseInt(args[1]));
        all.forEach((name, check) -> {
            if (named.isEmpty() || named.contains(name)) {
                threads.execute(() -> run(args[0], name, check));
            }
        });
        threads.shutdown();
        Check.that(threads.awaitTermination(LIMIT_MINUTES, TimeUnit.MINUTES), "checks that hang");
        System.exit(0);
    }

    private static void run(String bootstrap, String name, GroupCheck check) {
        long started = System.nanoTime();
        Throwable failure = null;
        try (GroupWorld world = new GroupWorld(bootstrap, name)) {
            check.run(world);
        } catch (Throwable e) {
            failure = e;
        }
        Scenarios.tell(name, failure, List.of(), started);
    }
}
