// At each line that it reads, it works as often as the line says, and answers it.
import java.io.BufferedReader;
import java.io.InputStreamReader;

public class Lines {
    static int cost(int n) {
        return n * 2;
    }

    int price(int n) {
        return cost(n) + 1;
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready");
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            int times = Integer.parseInt(line);
            Lines shop = new Lines();
            for (int n = 0; n < times; n++) {
                shop.price(n);
            }
            System.gc();
            Thread thread = new Thread(() -> { }, "worker-" + times);
            thread.start();
            thread.join();
            System.out.println("done");
        }
    }
}
