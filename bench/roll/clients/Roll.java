// Apache's Java client. See __init__.py for arguments and output.

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class Roll {
    static final long LIMIT_MS = 60_000;
    static final AtomicBoolean stopping = new AtomicBoolean();
    static final AtomicBoolean flushed = new AtomicBoolean();
    static final Set<Integer> acknowledged = ConcurrentHashMap.newKeySet();
    static final Set<Integer> received = ConcurrentHashMap.newKeySet();

    static synchronized void write(String kind, Object what) {
        System.out.printf("%.3f %s %s%n", System.currentTimeMillis() / 1000.0, kind, what);
        System.out.flush();
    }

    static void thread(Runnable work) {
        Thread thread = new Thread(work);
        thread.setDaemon(true);
        thread.start();
    }

    static void produce(String bootstrap, String topic) {
        try (var producer = new KafkaProducer<>(
                Map.<String, Object>of("bootstrap.servers", bootstrap),
                new ByteArraySerializer(), new ByteArraySerializer())) {
            for (int n = 0; !stopping.get(); n++) {
                int number = n;
                byte[] value = String.valueOf(n).getBytes(StandardCharsets.UTF_8);
                producer.send(new ProducerRecord<byte[], byte[]>(topic, value), (metadata, error) -> {
                    if (error != null) {
                        write("error", error.getClass().getSimpleName());
                    } else {
                        acknowledged.add(number);
                        write("acknowledged", number);
                    }
                });
                Thread.sleep(20);
            }
            producer.flush();
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
        flushed.set(true);
    }

    public static void main(String[] arguments) {
        String bootstrap = arguments[0];
        String topic = arguments[1];
        thread(() -> {
            try {
                System.in.readAllBytes();
            } catch (java.io.IOException e) {
                throw new IllegalStateException(e);
            }
            stopping.set(true);
        });
        long deadline = Long.MAX_VALUE;
        try (var consumer = new KafkaConsumer<>(
                Map.<String, Object>of("bootstrap.servers", bootstrap, "group.id", arguments[2],
                        "auto.offset.reset", "earliest",
                        "client.rack", System.getenv().getOrDefault("ROLL_RACK", "")),
                new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(topic));
            thread(() -> produce(bootstrap, topic));
            while (!(flushed.get() && received.containsAll(acknowledged)) && System.currentTimeMillis() < deadline) {
                try {
                    for (var record : consumer.poll(Duration.ofMillis(200))) {
                        int number = Integer.parseInt(new String(record.value(), StandardCharsets.UTF_8));
                        received.add(number);
                        write("received", number);
                    }
                } catch (RuntimeException e) {
                    write("error", e.getClass().getSimpleName());
                }
                if (stopping.get() && deadline == Long.MAX_VALUE) {
                    deadline = System.currentTimeMillis() + LIMIT_MS;
                }
            }
        }
        System.exit(0);
    }
}
