import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.SecureRandom;
import java.security.cert.X509Certificate;
import java.util.ArrayList;
import java.util.concurrent.CompletableFuture;
import javax.net.ssl.KeyManager;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManager;
import javax.net.ssl.X509TrustManager;

/**
 * Java's own HttpClient: `JavaClient KIND VERSION URL CONNECTIONS REQUESTS [FILE]`, so many requests on each of so many connections.
 * KIND: get (one after the other), at-once (ten under way), eight-at-once, upload, upload-continue, certificate. No certificate is verified.
 */
public class JavaClient {
    static final String PASSWORD = "secret";

    static final TrustManager[] TRUSTING = {new X509TrustManager() {
        public void checkClientTrusted(X509Certificate[] chain, String type) {}

        public void checkServerTrusted(X509Certificate[] chain, String type) {}

        public X509Certificate[] getAcceptedIssuers() {
            return new X509Certificate[0];
        }
    }};

    static KeyManager[] keys(Path file) throws Exception {
        var factory = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        factory.init(KeyStore.getInstance(file.toFile(), PASSWORD.toCharArray()), PASSWORD.toCharArray());
        return factory.getKeyManagers();
    }

    public static void main(String[] arguments) throws Exception {
        System.setProperty("jdk.internal.httpclient.disableHostnameVerification", "true");
        var kind = arguments[0];
        var version = arguments[1].equals("2") ? HttpClient.Version.HTTP_2 : HttpClient.Version.HTTP_1_1;
        var uri = URI.create(arguments[2]);
        int connections = Integer.parseInt(arguments[3]);
        int requests = Integer.parseInt(arguments[4]);
        var builder = HttpRequest.newBuilder(uri);
        if (kind.startsWith("upload")) {
            builder.PUT(BodyPublishers.ofFile(Path.of(arguments[5])));
            builder.expectContinue(kind.equals("upload-continue"));
        }
        var request = builder.build();
        var clients = new ArrayList<HttpClient>();
        for (int number = 0; number < connections; number++) {
            var context = SSLContext.getInstance("TLS");
            context.init(kind.equals("certificate") ? keys(Path.of(arguments[5])) : null, TRUSTING, new SecureRandom());
            clients.add(HttpClient.newBuilder().version(version).sslContext(context).build());
        }
        var threads = new ArrayList<Thread>();
        var failed = new ArrayList<Throwable>();
        for (var client : clients) {
            threads.add(new Thread(() -> {
                try {
                    if (kind.endsWith("at-once")) {
                        ask(client, request); // The connection that all others share.
                        atOnce(client, request, requests - 1, kind.startsWith("eight") ? 8 : 10);
                    } else {
                        for (int number = 0; number < requests; number++) {
                            ask(client, request);
                        }
                    }
                } catch (Throwable error) {
                    synchronized (failed) {
                        failed.add(error);
                    }
                }
            }));
        }
        for (var thread : threads) {
            thread.start();
        }
        for (var thread : threads) {
            thread.join();
        }
        if (!failed.isEmpty()) {
            failed.get(0).printStackTrace();
            System.exit(1);
        }
        System.exit(0);
    }

    static void ask(HttpClient client, HttpRequest request) throws Exception {
        check(client.send(request, BodyHandlers.ofByteArray()).statusCode());
    }

    /** So many lanes, one request of each under way at each moment. */
    static void atOnce(HttpClient client, HttpRequest request, int requests, int lanes) {
        var running = new ArrayList<CompletableFuture<Void>>();
        for (int lane = 0; lane < lanes; lane++) {
            running.add(chain(client, request, requests / lanes + (lane < requests % lanes ? 1 : 0)));
        }
        for (var lane : running) {
            lane.join();
        }
    }

    static CompletableFuture<Void> chain(HttpClient client, HttpRequest request, int left) {
        if (left == 0) {
            return CompletableFuture.completedFuture(null);
        }
        return client.sendAsync(request, BodyHandlers.ofByteArray()).thenCompose(answer -> {
            check(answer.statusCode());
            return chain(client, request, left - 1);
        });
    }

    static void check(int status) {
        if (status < 200 || status > 299) {
            throw new IllegalStateException("status " + status);
        }
    }
}
