import java.io.FileInputStream;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.sink.TransactionNamingStrategy;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/**
 * Counts words exactly once: input "words", output "counts" with "word:count" for each record. The arguments are a file
 * with settings of Flink, the servers, the naming of transactions, and the count of a word at which it fails, once; 0 is
 * never. Says "failing" then, on standard output.
 */
public final class KeyedCounts {
    private static final AtomicBoolean HAS_FAILED = new AtomicBoolean();

    public static void main(String[] arguments) throws Exception {
        Properties given = new Properties();
        try (FileInputStream file = new FileInputStream(arguments[0])) {
            given.load(file);
        }
        Configuration settings = new Configuration();
        given.forEach((name, value) -> settings.setString(name.toString(), value.toString()));
        String servers = arguments[1];
        StreamExecutionEnvironment flink = StreamExecutionEnvironment.createLocalEnvironment(2, settings);
        KafkaSource<String> source = KafkaSource.<String>builder()
            .setBootstrapServers(servers)
            .setTopics("words")
            .setGroupId("flink")
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setProperty("isolation.level", "read_committed")
            .setProperty("partition.discovery.interval.ms", "1000")
            .setValueOnlyDeserializer(new SimpleStringSchema())
            .build();
        KafkaSink<String> sink = KafkaSink.<String>builder()
            .setBootstrapServers(servers)
            .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
            .setTransactionalIdPrefix("flink-counts")
            .setTransactionNamingStrategy(TransactionNamingStrategy.valueOf(arguments[2]))
            .setProperty("transaction.timeout.ms", "120000")
            .setRecordSerializer(KafkaRecordSerializationSchema.builder()
                .setTopic("counts")
                .setKeySerializationSchema((String count) -> count.split(":")[0].getBytes())
                .setValueSerializationSchema(new SimpleStringSchema())
                .build())
            .build();
        flink.fromSource(source, WatermarkStrategy.noWatermarks(), "words")
            .keyBy(word -> word)
            .process(new Counting(Long.parseLong(arguments[3])))
            .sinkTo(sink);
        flink.execute("counts");
    }

    private static final class Counting extends KeyedProcessFunction<String, String, String> {
        private final long failsAt;
        private transient ValueState<Long> count;

        Counting(long failsAt) {
            this.failsAt = failsAt;
        }

        @Override
        public void open(OpenContext context) {
            count = getRuntimeContext().getState(new ValueStateDescriptor<>("count", Long.class));
        }

        @Override
        public void processElement(String word, Context context, Collector<String> out) throws Exception {
            long next = count.value() == null ? 1 : count.value() + 1;
            count.update(next);
            if (next == failsAt && HAS_FAILED.compareAndSet(false, true)) {
                System.out.println("failing");
                System.out.flush();
                throw new IllegalStateException("a failure that the test asked for");
            }
            out.collect(word + ":" + next);
        }
    }
}
