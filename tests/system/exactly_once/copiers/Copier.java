import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.TreeMap;
import java.util.function.Function;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.errors.UnsupportedVersionException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Apache Kafka's own clients as a copier; see README.md. */
public final class Copier {
    private static final Map<String, String> ARGUMENTS = new HashMap<>();
    private static volatile boolean stopped;
    private static Random chance;
    private static int attempts;

    private static void tell(String event, String rest) {
        // System.nanoTime() is the clock that Python calls monotonic.
        String at = String.format("%.6f", System.nanoTime() / 1e9);
        System.out.println("{\"event\": \"" + event + "\", \"at\": " + at + rest + "}");
        System.out.flush();
    }

    private static void tellOf(String event, String transaction) {
        tell(event, ", \"transaction\": \"" + transaction + "\"");
    }

    private static <V> String object(Map<Integer, V> values) {
        return values.entrySet().stream()
            .map(each -> "\"" + each.getKey() + "\": " + each.getValue())
            .collect(Collectors.joining(", ", "{", "}"));
    }

    private static void tellAssigned(Map<Integer, Long> positions) {
        tell("assigned", ", \"positions\": " + object(positions));
    }

    private static void tellTrouble(String what, Throwable problem) {
        String text = (what + ": " + problem).replace('\\', '/').replace('"', '\'').replace('\n', ' ');
        tell("trouble", ", \"what\": \"" + text + "\"");
    }

    private static void dieIf(String point, String here) {
        if (!here.equals(point)) return;
        if (!here.equals("committing")) Runtime.getRuntime().halt(137);
        long after = chance.nextInt(30);
        Thread killer =
            new Thread(
                () -> {
                    try {
                        Thread.sleep(after);
                    } catch (InterruptedException gone) {
                        // then at once
                    }
                    Runtime.getRuntime().halt(137);
                });
        killer.setDaemon(true);
        killer.start();
    }

    private static Properties common() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", ARGUMENTS.get("bootstrap"));
        settings.put("reconnect.backoff.max.ms", "500");
        settings.put("metadata.max.age.ms", "2000");
        settings.put("request.timeout.ms", "10000");
        settings.put("default.api.timeout.ms", "20000");
        return settings;
    }

    private static KafkaProducer<String, String> producer() {
        Properties settings = common();
        settings.put("transactional.id", ARGUMENTS.get("transactional_id"));
        settings.put("transaction.timeout.ms", ARGUMENTS.get("timeout_ms"));
        settings.put("max.block.ms", "10000");
        settings.put("delivery.timeout.ms", "30000");
        settings.put("linger.ms", "2");
        settings.put("key.serializer", StringSerializer.class.getName());
        settings.put("value.serializer", StringSerializer.class.getName());
        return new KafkaProducer<>(settings);
    }

    private static KafkaConsumer<String, String> consumer() {
        Properties settings = common();
        settings.put("group.id", ARGUMENTS.get("group"));
        settings.put("isolation.level", "read_committed");
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        settings.put("max.poll.records", ARGUMENTS.get("max_records"));
        settings.put("fetch.max.wait.ms", "100");
        settings.put("group.protocol", ARGUMENTS.get("group_protocol"));
        if (ARGUMENTS.get("group_protocol").equals("classic")) {
            settings.put("session.timeout.ms", "3000");
            settings.put("heartbeat.interval.ms", "500");
        }
        settings.put("key.deserializer", StringDeserializer.class.getName());
        settings.put("value.deserializer", StringDeserializer.class.getName());
        return new KafkaConsumer<>(settings);
    }

    /** As long as it is only late. */
    private static void insist(Runnable call) {
        while (true) {
            try {
                call.run();
                return;
            } catch (TimeoutException late) {
                tellTrouble("late", late);
            }
        }
    }

    private static void copy(
        KafkaProducer<String, String> producer,
        KafkaConsumer<String, String> consumer,
        List<ConsumerRecord<String, String>> records,
        double since) {
        String name = ARGUMENTS.get("name") + "." + ++attempts;
        boolean aborts = chance.nextDouble() < Double.parseDouble(ARGUMENTS.get("abort_chance"));
        String[] points = {"begun", "sending", "sent", "offsets", "committing"};
        boolean dies = chance.nextDouble() < Double.parseDouble(ARGUMENTS.get("death_chance"));
        String point = dies ? points[chance.nextInt(points.length)] : "";
        Map<Integer, Long> starts = new TreeMap<>();
        Map<Integer, Long> ends = new TreeMap<>();
        Function<ConsumerRecord<String, String>, String> row =
            each -> "[" + each.partition() + ", " + each.offset() + ", \"" + each.value() + "\"]";
        for (ConsumerRecord<String, String> each : records) {
            starts.putIfAbsent(each.partition(), each.offset());
            ends.put(each.partition(), each.offset() + 1);
        }
        String listed = records.stream().map(row).collect(Collectors.joining(", ", "[", "]"));
        tell("begin", ", \"transaction\": \"" + name + "\", \"since\": " + since + ", \"records\": " + listed);
        try {
            producer.beginTransaction();
            dieIf(point, "begun");
            for (ConsumerRecord<String, String> each : records) {
                producer.send(
                    new ProducerRecord<>(ARGUMENTS.get("output"), each.partition(), null, name + " " + each.value()));
            }
            dieIf(point, "sending");
            producer.flush();
            dieIf(point, "sent");
            Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
            ends.forEach(
                (partition, offset) ->
                    offsets.put(
                        new TopicPartition(ARGUMENTS.get("input"), partition), new OffsetAndMetadata(offset)));
            tell("offsets", ", \"transaction\": \"" + name + "\", \"offsets\": " + object(ends));
            insist(() -> producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata()));
            dieIf(point, "offsets");
            if (!aborts) {
                tellOf("committing", name);
                dieIf(point, "committing");
                insist(producer::commitTransaction);
                tellOf("committed", name);
                return;
            }
        } catch (ProducerFencedException
            | InvalidProducerEpochException
            | AuthorizationException
            | UnsupportedVersionException
            | IllegalStateException end) {
            throw end;
        } catch (KafkaException problem) {
            tellTrouble(name + " has to abort", problem);
        }
        insist(producer::abortTransaction);
        tellOf("aborted", name);
        tellAssigned(starts);
        starts.forEach(
            (partition, offset) -> {
                TopicPartition place = new TopicPartition(ARGUMENTS.get("input"), partition);
                if (consumer.assignment().contains(place)) consumer.seek(place, offset);
            });
    }

    private static void begin(KafkaConsumer<String, String> consumer) {
        String input = ARGUMENTS.get("input");
        List<TopicPartition> fixed =
            Arrays.stream(ARGUMENTS.get("partitions").split(","))
                .filter(each -> !each.isEmpty())
                .map(each -> new TopicPartition(input, Integer.parseInt(each)))
                .toList();
        Map<Integer, Long> nowhere = new TreeMap<>();
        if (!fixed.isEmpty()) {
            consumer.assign(fixed);
            fixed.forEach(each -> nowhere.put(each.partition(), null));
            tellAssigned(nowhere);
            return;
        }
        consumer.subscribe(
            List.of(input),
            new ConsumerRebalanceListener() {
                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                    Map<Integer, Long> given = new TreeMap<>();
                    partitions.forEach(each -> given.put(each.partition(), null));
                    tellAssigned(given);
                }

                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                    tellAssigned(Map.of());
                }
            });
    }

    public static void main(String[] arguments) {
        for (String each : arguments) {
            ARGUMENTS.put(each.substring(0, each.indexOf('=')), each.substring(each.indexOf('=') + 1));
        }
        chance = new Random((ARGUMENTS.get("seed") + " " + ARGUMENTS.get("name")).hashCode());
        Thread watcher =
            new Thread(
                () -> {
                    try {
                        while (System.in.read() >= 0) {}
                    } catch (java.io.IOException gone) {
                        // the same as its end
                    }
                    stopped = true;
                });
        watcher.setDaemon(true);
        watcher.start();
        KafkaProducer<String, String> producer = producer();
        try {
            insist(producer::initTransactions);
            tell("ready", "");
            KafkaConsumer<String, String> consumer = consumer();
            begin(consumer);
            while (!stopped) {
                double since = System.nanoTime() / 1e9;
                ConsumerRecords<String, String> polled = consumer.poll(Duration.ofMillis(200));
                List<ConsumerRecord<String, String>> records = new ArrayList<>();
                polled.forEach(records::add);
                if (!records.isEmpty()) copy(producer, consumer, records, since);
            }
            consumer.close();
            producer.close();
        } catch (KafkaException | IllegalStateException problem) {
            tellTrouble("ends", problem);
            Runtime.getRuntime().halt(3);
        }
    }
}
