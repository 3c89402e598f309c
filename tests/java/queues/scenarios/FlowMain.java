package scenarios;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Produces to a topic and reads it as a group: {@code PROTOCOL BOOTSTRAP TOPIC}, with the protocol of the group.
 *
 * <p>Tells on standard output what was acknowledged, what failed and what was received. Stops to produce at the line
 * {@code stop} on standard input, and ends with its input.
 */
public final class FlowMain {
    private static final int KEYS = 40;
    private static final long PAUSE_MS = 4;

    private final String protocol;
    private final String bootstrap;
    private final String topic;
    private volatile boolean stopped;
    private volatile boolean ended;

    private FlowMain(String[] args) {
        protocol = args[0];
        bootstrap = args[1];
        topic = args[2];
    }

    public static void main(String[] args) throws Exception {
        WarningLog log = WarningLog.install();
        FlowMain flow = new FlowMain(args);
        Thread writer = new Thread(flow::write, "writer");
        Thread reader = new Thread(flow::read, "reader");
        writer.start();
        reader.start();
        try (BufferedReader input = new BufferedReader(new InputStreamReader(System.in))) {
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                flow.stopped = line.equals("stop");
            }
        } catch (IOException e) {
            System.err.println("input: " + e);
        }
        flow.stopped = true;
        flow.ended = true;
        writer.join();
        reader.join();
        log.take().forEach(System.err::println);
    }

    private void write() {
        Map<String, Object> settings = Map.of(
                "bootstrap.servers", bootstrap, "linger.ms", 100, "metadata.max.age.ms", 3_000,
                "delivery.timeout.ms", 20_000, "request.timeout.ms", 10_000);
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (int number = 0; !stopped; number++) {
                String key = "" + number % KEYS;
                String value = "w/" + key + "/" + number;
                producer.send(new ProducerRecord<>(topic, key, value), (told, error) ->
                        say(error == null ? "acknowledged " + value : "failed " + error.getClass().getSimpleName()));
                Thread.sleep(PAUSE_MS);
            }
            producer.flush();
        } catch (InterruptedException e) {
            say("failed " + e);
        }
        say("stopped");
    }

    private void read() {
        Map<String, Object> settings = Map.of(
                "bootstrap.servers", bootstrap, "group.id", topic, "group.protocol", protocol,
                "auto.offset.reset", "earliest", "auto.commit.interval.ms", 500, "metadata.max.age.ms", 3_000);
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            while (!ended) {
                consumer.poll(Duration.ofMillis(100))
                        .forEach(r -> say("record " + r.partition() + " " + r.offset() + " " + r.value()));
            }
        }
    }

    private static synchronized void say(String line) {
        System.out.println(line);
    }
}
