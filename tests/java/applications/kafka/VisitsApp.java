import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.TimeWindows;

/**
 * A Kafka Streams application with each kind of state: joins with a table and with a stream, a repartition, windows.
 *
 * <p>Arguments: bootstrap servers, prefix of the topics, state folder. Reads PREFIX-visits and PREFIX-orders (user to
 * number) and PREFIX-users (user to country); writes PREFIX-by-country (visits with their country), PREFIX-counts
 * (visits of a country in a minute) and PREFIX-pairs (visit and order with the same user and number).
 */
public final class VisitsApp {
    private VisitsApp() {}

    public static void main(String[] args) {
        String prefix = args[1];
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> visits = builder.stream(prefix + "-visits");
        KStream<String, String> orders = builder.stream(prefix + "-orders");
        KTable<String, String> users = builder.table(prefix + "-users");
        Duration minute = Duration.ofMinutes(1);

        visits.join(users, (visit, country) -> country + ":" + visit).to(prefix + "-by-country");
        visits.join(users, (visit, country) -> country)
                .selectKey((user, country) -> country)
                .groupByKey()
                .windowedBy(TimeWindows.ofSizeAndGrace(minute, Duration.ofDays(1)))
                .count()
                .toStream()
                .map((window, count) -> KeyValue.pair(window.key() + "@" + window.window().start(), "" + count))
                .to(prefix + "-counts");
        visits.join(
                        orders,
                        (visit, order) -> visit.equals(order) ? visit : null,
                        JoinWindows.ofTimeDifferenceAndGrace(Duration.ofSeconds(1), Duration.ofDays(1)))
                .filter((user, pair) -> pair != null)
                .to(prefix + "-pairs");

        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, prefix + "-app");
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, args[2]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.NUM_STANDBY_REPLICAS_CONFIG, 1);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 1);
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG), 10_000);
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setStateListener((state, before) -> System.out.println(state));
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(20))));
        streams.start();
    }
}
