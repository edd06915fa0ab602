import java.io.FileInputStream;
import java.util.Properties;
import java.util.stream.Collectors;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

/**
 * Counts records by key: input "words" with the value "key:number", outputs "counts" (how many) and "highest" (the
 * highest number). The key is in the value, so a repartition topic is between. Says what happens as JSON lines; ends with
 * its standard input.
 */
public final class WordCounts {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        try (FileInputStream file = new FileInputStream(arguments[0])) {
            settings.load(file);
        }
        settings.put("default.key.serde", Serdes.StringSerde.class.getName());
        settings.put("default.value.serde", Serdes.StringSerde.class.getName());
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> words = builder.stream("words", Consumed.with(Serdes.String(), Serdes.String()));
        KGroupedStream<String, Long> byKey = words
            .map((key, value) -> new org.apache.kafka.streams.KeyValue<>(
                value.split(":")[0], Long.parseLong(value.split(":")[1])))
            .groupByKey(Grouped.with("by-word", Serdes.String(), Serdes.Long()));
        byKey.count(Materialized.as("counts-store")).toStream()
            .mapValues(value -> Long.toString(value)).to("counts", Produced.with(Serdes.String(), Serdes.String()));
        byKey.reduce(Math::max, Materialized.with(Serdes.String(), Serdes.Long())).toStream()
            .mapValues(value -> Long.toString(value)).to("highest", Produced.with(Serdes.String(), Serdes.String()));
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setStateListener((now, before) -> say("state", now.name()));
        streams.setUncaughtExceptionHandler(problem -> {
            problem.printStackTrace();
            say("failed", String.valueOf(problem.getMessage()));
            return org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse
                .REPLACE_THREAD;
        });
        streams.start();
        byte[] line = new byte[256];
        while (true) {
            int length = System.in.read(line);
            if (length < 0) {
                break;
            }
            String command = new String(line, 0, length).strip();
            if (command.equals("tasks")) {
                say("tasks", streams.metadataForLocalThreads().stream()
                    .flatMap(thread -> thread.activeTasks().stream())
                    .map(task -> task.taskId().toString()).sorted().collect(Collectors.joining(",")));
            } else if (command.equals("standbys")) {
                say("standbys", streams.metadataForLocalThreads().stream()
                    .flatMap(thread -> thread.standbyTasks().stream())
                    .map(task -> task.taskId().toString()).sorted().collect(Collectors.joining(",")));
            } else if (command.equals("endpoints")) {
                say("endpoints", streams.streamsMetadataForStore("counts-store").stream()
                    .map(host -> host.host() + ":" + host.port() + "=" + host.topicPartitions().size())
                    .sorted().collect(Collectors.joining(",")));
            }
        }
        streams.close();
        say("state", "CLOSED");
        System.exit(0);
    }

    private static synchronized void say(String what, String text) {
        System.out.println("{\"" + what + "\": \"" + text.replace("\\", "").replace("\"", "'").replace("\n", " ") + "\"}");
        System.out.flush();
    }
}
