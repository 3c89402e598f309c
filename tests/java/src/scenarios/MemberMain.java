package scenarios;

import java.io.IOException;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * A member of a group in a process of its own, so that it can be killed: {@code GROUP TOPIC [NAME VALUE]...}.
 *
 * <p>Commits after each poll, tells on standard output what it sees, and leaves when its standard input ends.
 */
public final class MemberMain {
    private MemberMain() {}

    public static void main(String[] args) {
        WarningLog log = WarningLog.install();
        Map<String, Object> settings = new HashMap<>(Map.of(
                "group.id", args[0], "enable.auto.commit", "false",
                "auto.offset.reset", "earliest"));
        for (int i = 2; i < args.length; i += 2) {
            settings.put(args[i], args[i + 1]);
        }
        AtomicBoolean stop = stopAtEndOfInput();
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(args[1]), new Listener(consumer));
            while (!stop.get()) {
                handle(consumer, consumer.poll(Cluster.POLL));
                log.take().forEach(line -> say("warning " + line));
            }
        } catch (RuntimeException e) {
            log.take().forEach(line -> say("warning " + line));
            say("failed " + e);
            System.exit(1);
        }
        log.take().forEach(line -> say("warning " + line));
        System.exit(0);
    }

    private static void handle(KafkaConsumer<String, String> consumer, ConsumerRecords<String, String> records) {
        records.forEach(r -> say("record " + r.value()));
        if (records.isEmpty()) {
            return;
        }
        try {
            consumer.commitSync();
        } catch (CommitFailedException | RebalanceInProgressException e) {
            say("uncommitted " + e.getClass().getSimpleName()); // the records come again, here or elsewhere
        }
    }

    private static AtomicBoolean stopAtEndOfInput() {
        AtomicBoolean stop = new AtomicBoolean();
        Thread watcher = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                    continue;
                }
            } catch (IOException e) {
                say("input " + e);
            }
            stop.set(true);
        });
        watcher.setDaemon(true);
        watcher.start();
        return stop;
    }

    private static synchronized void say(String line) {
        System.out.println(line.replace('\n', ' '));
    }

    private static String numbers(Collection<TopicPartition> partitions) {
        return partitions.stream().map(p -> "" + p.partition()).collect(Collectors.joining(" "));
    }

    private static final class Listener implements ConsumerRebalanceListener {
        private final KafkaConsumer<String, String> consumer;

        private Listener(KafkaConsumer<String, String> consumer) {
            this.consumer = consumer;
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            say("generation " + consumer.groupMetadata().generationId());
            say("assigned " + numbers(partitions));
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            say("revoked " + numbers(partitions));
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            say("lost " + numbers(partitions));
        }
    }
}
