import java.time.Duration;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.ExternalizedCheckpointRetention;
import org.apache.flink.configuration.RestartStrategyOptions;
import org.apache.flink.configuration.StateRecoveryOptions;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.sink.TransactionNamingStrategy;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * Copies a topic to another one, exactly once, until it is stopped.
 *
 * <p>Arguments: bootstrap servers, source topic, target topic, checkpoint folder, transaction naming strategy, and
 * optionally the checkpoint to restore.
 */
public final class CopyJob {
    private static final int PARALLELISM = 2;
    private static final long PAUSE_MS = 4;

    private CopyJob() {}

    public static void main(String[] args) throws Exception {
        String bootstrap = args[0];
        Configuration settings = new Configuration();
        settings.set(CheckpointingOptions.CHECKPOINTS_DIRECTORY, "file://" + args[3]);
        settings.set(CheckpointingOptions.CHECKPOINTING_INTERVAL, Duration.ofMillis(400));
        settings.set(
                CheckpointingOptions.EXTERNALIZED_CHECKPOINT_RETENTION,
                ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION);
        settings.set(RestartStrategyOptions.RESTART_STRATEGY, "none");
        if (args.length > 5) {
            settings.set(StateRecoveryOptions.SAVEPOINT_PATH, "file://" + args[5]);
        }
        StreamExecutionEnvironment job = StreamExecutionEnvironment.createLocalEnvironment(PARALLELISM, settings);
        KafkaSource<String> source = KafkaSource.<String>builder()
                .setBootstrapServers(bootstrap)
                .setTopics(args[1])
                .setGroupId("copy-job")
                .setStartingOffsets(OffsetsInitializer.earliest())
                .setValueOnlyDeserializer(new SimpleStringSchema())
                .build();
        KafkaSink<String> sink = KafkaSink.<String>builder()
                .setBootstrapServers(bootstrap)
                .setRecordSerializer(KafkaRecordSerializationSchema.builder()
                        .setTopic(args[2])
                        .setValueSerializationSchema(new SimpleStringSchema())
                        .build())
                .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
                .setTransactionalIdPrefix("copy-" + args[2])
                .setTransactionNamingStrategy(TransactionNamingStrategy.valueOf(args[4]))
                // Many small batches under way in each transaction.
                .setProperty("batch.size", "200")
                .setProperty("linger.ms", "0")
                .setProperty("transaction.timeout.ms", "60000")
                .build();
        job.fromSource(source, WatermarkStrategy.noWatermarks(), "source")
                .map(value -> {
                    Thread.sleep(PAUSE_MS);
                    return value;
                })
                .sinkTo(sink);
        job.execute("copy");
    }
}
