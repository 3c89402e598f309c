package scenarios;

import java.util.Objects;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;

/** Assertions, each with a sentence that says what should have been. */
final class Check {
    /** How long anything may take before it counts as never; generous, since nothing here measures time. */
    static final long LIMIT_MS = 40_000;

    private Check() {}

    static void that(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    static void equal(Object expected, Object actual, String what) {
        that(Objects.equals(expected, actual), what + ": expected " + expected + ", got " + actual);
    }

    /** Runs what must be refused, and returns the refusal. Causes of an ExecutionException count as the refusal. */
    static <E extends Throwable> E refused(Class<E> how, String what, Callable<?> action) {
        Throwable thrown;
        try {
            Object result = action.call();
            throw new AssertionError(what + ": expected " + how.getSimpleName() + ", got " + result);
        } catch (ExecutionException e) {
            thrown = e.getCause();
        } catch (Exception e) {
            thrown = how.isInstance(e) || e.getCause() == null ? e : e.getCause();
        }
        if (!how.isInstance(thrown)) {
            throw new AssertionError(what + ": expected " + how.getSimpleName() + ", got " + thrown, thrown);
        }
        return how.cast(thrown);
    }

    /** As refused, for what each broker answers by what it has heard: asked again while one still answers. */
    static <E extends Throwable> E refusedAtLast(Class<E> how, String what, Callable<?> action) throws Exception {
        long deadline = System.nanoTime() + LIMIT_MS * 1_000_000;
        while (true) {
            try {
                return refused(how, what, action);
            } catch (AssertionError e) {
                if (e.getCause() != null || System.nanoTime() > deadline) {
                    throw e;
                }
            }
            Thread.sleep(20);
        }
    }

    /** Waits until the condition holds. */
    static void eventually(String what, Callable<Boolean> condition) throws Exception {
        long deadline = System.nanoTime() + LIMIT_MS * 1_000_000;
        while (!condition.call()) {
            that(System.nanoTime() < deadline, "never came: " + what);
            Thread.sleep(20);
        }
    }
}
