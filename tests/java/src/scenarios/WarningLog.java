package scenarios;

import java.util.ArrayList;
import java.util.List;
import java.util.logging.Handler;
import java.util.logging.Level;
import java.util.logging.LogRecord;
import java.util.logging.Logger;
import java.util.logging.SimpleFormatter;

/** Collects what the client library logs at WARN and above, instead of printing it. */
final class WarningLog extends Handler {
    private final SimpleFormatter formatter = new SimpleFormatter();
    private final List<String> lines = new ArrayList<>();

    static WarningLog install() {
        Logger root = Logger.getLogger("");
        for (Handler handler : root.getHandlers()) {
            root.removeHandler(handler);
        }
        WarningLog log = new WarningLog();
        root.setLevel(Level.WARNING);
        root.addHandler(log);
        return log;
    }

    /** What came since the last call. */
    synchronized List<String> take() {
        List<String> taken = List.copyOf(lines);
        lines.clear();
        return taken;
    }

    @Override
    public synchronized void publish(LogRecord record) {
        String trouble = record.getThrown() == null ? "" : " | " + record.getThrown();
        lines.add(record.getLoggerName() + ": " + formatter.formatMessage(record) + trouble);
    }

    @Override
    public void flush() {}

    @Override
    public void close() {}
}
