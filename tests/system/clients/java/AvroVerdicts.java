import java.io.BufferedOutputStream;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.avro.Schema;

/** Parses the schema on each line as a Java client does. Prints "ok" and the schema, or "no" and the reason. */
public final class AvroVerdicts {
  public static void main(String[] arguments) throws Exception {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    PrintStream out = new PrintStream(new BufferedOutputStream(System.out), false, StandardCharsets.UTF_8);
    for (String line; (line = in.readLine()) != null; ) {
      try {
        out.println("ok " + new Schema.Parser().parse(line));
      } catch (Throwable problem) {
        out.println("no " + String.valueOf(problem.getMessage()).replace("\n", " "));
      }
    }
    out.flush();
  }
}
