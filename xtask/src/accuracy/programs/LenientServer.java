import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.FileWriter;
import java.io.IOException;
import java.io.Writer;
import java.net.InetSocketAddress;

/** {@code LenientServer LOG PORT}: the JDK's server, which accepts any third word as a version. It writes a JSON line for each request. */
public class LenientServer {
    private static final byte[] BODY = "ok\n".getBytes();

    public static void main(String[] arguments) throws IOException {
        Writer log = new FileWriter(arguments[0], true);
        HttpServer server = HttpServer.create(new InetSocketAddress(Integer.parseInt(arguments[1])), 0);
        server.createContext("/", exchange -> answer(exchange, log));
        server.start();
    }

    private static void answer(HttpExchange exchange, Writer log) throws IOException {
        String client = exchange.getRemoteAddress().getAddress().getHostAddress();
        double now = System.currentTimeMillis() / 1000.0;
        log.write(String.format(
            "{\"ts\":%.3f,\"request\":{\"remote_ip\":\"%s\",\"method\":\"%s\",\"uri\":\"%s\"},\"status\":200}%n",
            now, client, exchange.getRequestMethod(), exchange.getRequestURI()));
        log.flush();
        exchange.sendResponseHeaders(200, BODY.length);
        exchange.getResponseBody().write(BODY);
        exchange.close();
    }
}
