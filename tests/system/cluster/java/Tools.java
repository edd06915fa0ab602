import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Apache Kafka's command-line tools one after another in one virtual machine, whose start would otherwise cost more
 * than all they do. A line {"main", "arguments", "stdin"} in, a line {"code", "said"} out.
 */
public final class Tools {
    private static final int RUNNING = -1;

    private static final class Ended extends Error {
        Ended() {
            super(null, null, false, false);
        }
    }

    public static void main(String[] unused) throws Exception {
        ObjectMapper json = new ObjectMapper();
        PrintStream responses = System.out;
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        ThreadLocal<Boolean> tool = ThreadLocal.withInitial(() -> false);
        tool.set(true);
        // Some tools take what ends them for a failure, and say so: only what was said before counts.
        int[] code = {RUNNING};
        int[] length = {0};
        ByteArrayOutputStream said = new ByteArrayOutputStream();
        PrintStream out = new PrintStream(said, true, StandardCharsets.UTF_8);
        Exit.Procedure end = (status, message) -> {
            if (!tool.get()) return;
            if (code[0] == RUNNING) {
                code[0] = status;
                length[0] = said.size();
            }
            throw new Ended();
        };
        Exit.setExitProcedure(end);
        Exit.setHaltProcedure(end);
        Exit.setShutdownHookAdder((name, hook) -> { });
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            JsonNode request = json.readTree(line);
            String[] arguments = json.convertValue(request.get("arguments"), String[].class);
            said.reset();
            System.setOut(out);
            System.setErr(out);
            System.setIn(new ByteArrayInputStream(request.get("stdin").asText().getBytes(StandardCharsets.UTF_8)));
            code[0] = RUNNING;
            try {
                Class.forName(request.get("main").asText())
                    .getMethod("main", String[].class)
                    .invoke(null, (Object) arguments);
            } catch (InvocationTargetException thrown) {
                if (code[0] == RUNNING) {
                    thrown.getCause().printStackTrace(out);
                    code[0] = 1;
                    length[0] = said.size();
                }
            }
            if (code[0] == RUNNING) {
                code[0] = 0;
                length[0] = said.size();
            }
            ObjectNode response = json.createObjectNode();
            response.put("code", code[0]);
            response.put("said", new String(said.toByteArray(), 0, length[0], StandardCharsets.UTF_8));
            responses.println(json.writeValueAsString(response));
            responses.flush();
        }
    }
}
