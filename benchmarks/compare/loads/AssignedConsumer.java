// Reads a whole topic with assign(), so that it needs no consumer group, twice; prints "records seconds" of the second time.
// Run from source (java -cp <Kafka's jars> AssignedConsumer.java BOOTSTRAP TOPIC), with the Java consumer's defaults.

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public final class AssignedConsumer {
    public static void main(String[] arguments) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("enable.auto.commit", "false");
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings, bytes, bytes)) {
            List<TopicPartition> partitions = consumer.partitionsFor(arguments[1]).stream()
                .map(each -> new TopicPartition(each.topic(), each.partition())).toList();
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            long expected = ends.values().stream().mapToLong(Long::longValue).sum();
            consumer.assign(partitions);
            readAll(consumer, partitions, expected); // compiles this JVM; only the second pass is timed
            long started = System.nanoTime();
            long read = readAll(consumer, partitions, expected);
            System.out.println(read + " " + (System.nanoTime() - started) / 1e9);
        }
    }

    private static long readAll(KafkaConsumer<byte[], byte[]> consumer, List<TopicPartition> partitions, long expected) {
        consumer.seekToBeginning(partitions);
        long deadline = System.nanoTime() + 60_000_000_000L;
        long read = 0;
        while (read < expected && System.nanoTime() < deadline) {
            read += consumer.poll(Duration.ofMillis(200)).count();
        }
        return read;
    }
}
