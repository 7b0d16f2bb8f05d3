import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.Future;
import net.spy.memcached.BinaryConnectionFactory;
import net.spy.memcached.CASResponse;
import net.spy.memcached.CASValue;
import net.spy.memcached.ConnectionFactory;
import net.spy.memcached.DefaultConnectionFactory;
import net.spy.memcached.MemcachedClient;

/** spymemcached, in text and binary, against a server: HOST PORT. */
public class Spy {
    static void check(Object found, Object expected, String what) {
        if (!Objects.equals(found, expected)) {
            throw new AssertionError(what + ": " + found + ", not " + expected);
        }
    }

    static void run(ConnectionFactory factory, InetSocketAddress address) throws Exception {
        MemcachedClient client = new MemcachedClient(factory, List.of(address));
        try {
            check(client.flush().get(), true, "flush");
            check(client.set("text", 600, "grüße").get(), true, "set");
            check(client.get("text"), "grüße", "get");
            check(client.get("nothing"), null, "get of nothing");
            check(client.add("text", 0, "x").get(), false, "add to what is there");
            check(client.replace("nothing", 0, "x").get(), false, "replace of nothing");
            check(client.incr("count", 5, 10), 10L, "incr with a default");
            check(client.incr("count", 5), 15L, "incr");
            check(client.decr("count", 100), 0L, "decr stops at 0");
            CASValue<Object> there = client.gets("text");
            check(client.cas("text", there.getCas(), "new"), CASResponse.OK, "cas");
            check(client.cas("text", there.getCas(), "x"), CASResponse.EXISTS, "cas, old token");
            check(client.touch("text", 1).get(), true, "touch");
            Thread.sleep(2100);
            check(client.get("text"), null, "what has expired");
            Map<String, Object> all = new HashMap<>();
            List<Future<Boolean>> sets = new ArrayList<>();
            for (int i = 0; i < 2000; i++) {
                all.put("m" + i, i);
                sets.add(client.set("m" + i, 0, i));
            }
            for (Future<Boolean> set : sets) {
                check(set.get(), true, "set");
            }
            check(client.getBulk(all.keySet()), all, "getBulk");
            check(client.delete("m0").get(), true, "delete");
            check(client.delete("m0").get(), false, "delete of nothing");
            check(client.getVersions().size(), 1, "version");
            String items = client.getStats().get(address).get("curr_items");
            check(Integer.parseInt(items) >= 2000, true, "stats");
        } finally {
            client.shutdown();
        }
    }

    public static void main(String[] args) throws Exception {
        InetSocketAddress address = new InetSocketAddress(args[0], Integer.parseInt(args[1]));
        run(new DefaultConnectionFactory(), address);
        run(new BinaryConnectionFactory(), address);
    }
}
