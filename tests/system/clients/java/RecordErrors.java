import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.InvalidRecordException;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Sends records in one batch, some of them without a key, drops those that the broker names as invalid, and sends the
 * others again. Arguments: the brokers, a topic, how many records, every how manyth has no key. Prints the numbers of
 * the dropped records, and those of the records that were taken.
 */
public final class RecordErrors {
    public static void main(String[] arguments) throws Exception {
        Map<String, Object> settings = Map.of(
                "bootstrap.servers", arguments[0],
                "linger.ms", 3_600_000,
                "delivery.timeout.ms", 7_200_000,
                "batch.size", 1_000_000,
                "key.serializer", StringSerializer.class,
                "value.serializer", StringSerializer.class);
        int every = Integer.parseInt(arguments[3]);
        List<Integer> left = new ArrayList<>(), dropped = new ArrayList<>(), taken = new ArrayList<>();
        for (int number = 0; number < Integer.parseInt(arguments[2]); number++) {
            left.add(number);
        }
        try (var producer = new KafkaProducer<String, String>(settings)) {
            for (int attempt = 0; attempt < 2; attempt++) {
                List<Future<RecordMetadata>> sent = new ArrayList<>();
                for (int number : left) {
                    String key = number % every == 0 ? null : "key-" + number;
                    sent.add(producer.send(new ProducerRecord<>(arguments[1], 0, key, "value-" + number)));
                }
                producer.flush();
                List<Integer> again = new ArrayList<>();
                for (int index = 0; index < sent.size(); index++) {
                    try {
                        sent.get(index).get();
                        taken.add(left.get(index));
                    } catch (ExecutionException failure) {
                        boolean isNamed = failure.getCause() instanceof InvalidRecordException;
                        (isNamed ? dropped : again).add(left.get(index));
                    }
                }
                left = again;
            }
        }
        System.out.println(dropped);
        System.out.println(taken);
    }
}
