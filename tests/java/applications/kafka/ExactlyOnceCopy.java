import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ApplicationRecoverableException;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Reads a topic as a member of a group, and writes each value in another form to a second topic, together with the
 * group's offsets, in one transaction for each poll. Runs until SIGTERM; ends with an error where its producer is fenced.
 *
 * <p>Arguments: bootstrap servers, source topic, target topic, group, transactional id.
 */
public final class ExactlyOnceCopy {
    private static final Duration POLL = Duration.ofMillis(200);
    private static final long PAUSE_MS = 40;

    private final KafkaConsumer<String, String> consumer;
    private final KafkaProducer<String, String> producer;
    private final String target;

    private ExactlyOnceCopy(Properties consumer, Properties producer, String target) {
        this.consumer = new KafkaConsumer<>(consumer, new StringDeserializer(), new StringDeserializer());
        this.producer = new KafkaProducer<>(producer, new StringSerializer(), new StringSerializer());
        this.target = target;
    }

    public static void main(String[] args) throws Exception {
        Properties consumer = new Properties();
        consumer.put(ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        consumer.put(ConsumerConfig.GROUP_ID_CONFIG, args[3]);
        consumer.put(ConsumerConfig.ENABLE_AUTO_COMMIT_CONFIG, false);
        consumer.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        consumer.put(ConsumerConfig.ISOLATION_LEVEL_CONFIG, "read_committed");
        consumer.put(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG, 10_000);
        consumer.put(ConsumerConfig.MAX_POLL_RECORDS_CONFIG, 10);
        Properties producer = new Properties();
        producer.put(ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        producer.put(ProducerConfig.TRANSACTIONAL_ID_CONFIG, args[4]);
        producer.put(ProducerConfig.TRANSACTION_TIMEOUT_CONFIG, 10_000);
        // Several batches under way in each transaction.
        producer.put(ProducerConfig.BATCH_SIZE_CONFIG, 100);
        producer.put(ProducerConfig.LINGER_MS_CONFIG, 0);
        ExactlyOnceCopy copy = new ExactlyOnceCopy(consumer, producer, args[2]);
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            copy.consumer.wakeup();
            try {
                main.join(Duration.ofSeconds(20).toMillis());
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        }));
        copy.run(args[1]);
    }

    private void run(String source) throws InterruptedException {
        try (consumer;
                producer) {
            producer.initTransactions();
            consumer.subscribe(List.of(source));
            while (true) {
                ConsumerRecords<String, String> records = consumer.poll(POLL);
                if (!records.isEmpty()) {
                    copy(records);
                }
            }
        } catch (WakeupException e) {
            System.out.println("stopped");
        }
    }

    private void copy(ConsumerRecords<String, String> records) throws InterruptedException {
        try {
            producer.beginTransaction();
            for (ConsumerRecord<String, String> record : records) {
                producer.send(new ProducerRecord<>(target, record.key(), "copy of " + record.value()));
            }
            producer.sendOffsetsToTransaction(records.nextOffsets(), consumer.groupMetadata());
            // An instance that is killed most likely leaves a transaction with records and offsets open.
            Thread.sleep(PAUSE_MS);
            producer.commitTransaction();
        } catch (ApplicationRecoverableException e) {
            throw e;
        } catch (KafkaException e) {
            System.out.println("aborted: " + e);
            producer.abortTransaction();
            rewind();
        }
    }

    /** Goes back to the committed offsets, since the aborted transaction has not moved them. */
    private void rewind() {
        Set<TopicPartition> assigned = consumer.assignment();
        Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(assigned);
        for (TopicPartition partition : assigned) {
            OffsetAndMetadata offset = committed.get(partition);
            if (offset == null) {
                consumer.seekToBeginning(List.of(partition));
            } else {
                consumer.seek(partition, offset);
            }
        }
    }
}
