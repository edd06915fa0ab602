import com.sun.jdi.Bootstrap;
import com.sun.jdi.Method;
import com.sun.jdi.VMDisconnectedException;
import com.sun.jdi.VirtualMachine;
import com.sun.jdi.event.BreakpointEvent;
import com.sun.jdi.event.ClassPrepareEvent;
import com.sun.jdi.event.Event;
import com.sun.jdi.event.EventSet;
import com.sun.jdi.request.EventRequest;

/**
 * Runs a Java program with a debugger, and holds its Kafka producer's network thread each time when it has read whether
 * there are unsent records: what a busy machine does now and then. Arguments: for how many ms, options of the JVM, and
 * the program with its arguments.
 */
public final class HeldNetworkThread {
    private static final String BUFFER = "org.apache.kafka.clients.producer.internals.RecordAccumulator";

    public static void main(String[] arguments) throws Exception {
        long holdMs = Long.parseLong(arguments[0]);
        var connector = Bootstrap.virtualMachineManager().defaultConnector();
        var launch = connector.defaultArguments();
        launch.get("options").setValue(arguments[1]);
        launch.get("main").setValue(arguments[2]);
        VirtualMachine machine = connector.launch(launch);
        Process program = machine.process();
        Thread output = new Thread(() -> copy(program.getInputStream(), System.out));
        Thread errors = new Thread(() -> copy(program.getErrorStream(), System.err));
        output.start();
        errors.start();
        try {
            var loaded = machine.eventRequestManager().createClassPrepareRequest();
            loaded.addClassFilter(BUFFER);
            loaded.enable();
            while (true) {
                EventSet events = machine.eventQueue().remove();
                for (Event event : events) {
                    if (event instanceof ClassPrepareEvent prepared) {
                        Method method = prepared.referenceType().methodsByName("hasIncomplete").get(0);
                        var last = method.locationOfCodeIndex(method.bytecodes().length - 1);
                        var request = machine.eventRequestManager().createBreakpointRequest(last);
                        request.setSuspendPolicy(EventRequest.SUSPEND_EVENT_THREAD);
                        request.enable();
                    } else if (event instanceof BreakpointEvent) {
                        Thread.sleep(holdMs);
                    }
                }
                events.resume();
            }
        } catch (VMDisconnectedException ended) {
            output.join();
            errors.join();
        } finally {
            program.destroyForcibly();
        }
    }

    private static void copy(java.io.InputStream from, java.io.PrintStream to) {
        try {
            from.transferTo(to);
        } catch (java.io.IOException ended) {
            to.println(ended);
        }
    }
}
