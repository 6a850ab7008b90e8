# Services that are attached to and detached from while they answer. `sh services.sh prepare|start|ask NAME`, with a folder of its own in
# $DIR, a port of its own in $PORT, and this file's folder in $LISTS. `prepare` makes what the service needs, `start` becomes it,
# `ask` prints an answer that is the same each time. `program` prints the file with the functions to probe.
set -eu
web() { exec curl -s --max-time 20 "http://127.0.0.1:$PORT/hello.txt"; }
# Netcats differ in when they end; this one ends when the service closes the connection.
exchange() { printf "$1" | python3 -c 'import socket, sys
s = socket.create_connection(("127.0.0.1", sys.argv[1]), 20)
s.sendall(sys.stdin.buffer.read())
for part in iter(lambda: s.recv(4096), b""): sys.stdout.buffer.write(part)' "$PORT"; }
case "$1 $2" in
*" nginx")
    case $1 in
    program) command -v nginx ;;
    prepare) chmod 755 "$DIR"; echo hello > "$DIR/hello.txt"
        cat > "$DIR/conf" <<END
daemon off; worker_processes 2; error_log stderr; pid $DIR/pid;
events {}
http { access_log off; client_body_temp_path $DIR/b; proxy_temp_path $DIR/p; fastcgi_temp_path $DIR/f; uwsgi_temp_path $DIR/u;
  scgi_temp_path $DIR/s; server { listen 127.0.0.1:$PORT; root $DIR; } }
END
        ;;
    start) exec nginx -p "$DIR" -c "$DIR/conf" ;;
    ask) web ;;
    esac ;;
*" haproxy")
    case $1 in
    program) command -v haproxy ;;
    prepare) cat > "$DIR/conf" <<END
defaults
  mode http
  timeout connect 5s
  timeout client 20s
  timeout server 20s
frontend one
  bind 127.0.0.1:$PORT
  http-request return status 200 content-type text/plain string "hello"
END
        ;;
    start) exec haproxy -f "$DIR/conf" -db ;;
    ask) web ;;
    esac ;;
*" lighttpd")
    case $1 in
    program) command -v lighttpd ;;
    prepare) echo hello > "$DIR/hello.txt"
        printf 'server.document-root = "%s"\nserver.port = %s\nserver.bind = "127.0.0.1"\n' "$DIR" "$PORT" > "$DIR/conf" ;;
    start) exec lighttpd -D -f "$DIR/conf" ;;
    ask) web ;;
    esac ;;
*" memcached")
    case $1 in
    program) command -v memcached ;;
    start) exec memcached -u nobody -l 127.0.0.1 -p "$PORT" -t 2 ;;
    ask) exchange 'set k 0 0 5\r\nhello\r\nget k\r\nquit\r\n' ;;
    esac ;;
*" redis")
    case $1 in
    program) command -v redis-server || echo target/redis/source/src/redis-server ;;
    start) exec "$(sh "$0" program redis)" --port "$PORT" --bind 127.0.0.1 --save '' --dir "$DIR" ;;
    ask) exchange 'SET k hello\r\nGET k\r\nQUIT\r\n' ;;
    esac ;;
*" postgres")
    bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
    as="setpriv --reuid=postgres --regid=postgres --clear-groups"
    case $1 in
    program) ls "$bin/postgres" ;;
    prepare) chown postgres "$DIR"; cd "$DIR"; $as "$bin/initdb" -D "$DIR/data" -A trust > /dev/null ;;
    start) cd "$DIR"; exec $as "$bin/postgres" -D "$DIR/data" -p "$PORT" -k "$DIR" -h '' ;;
    ask) exec "$bin/psql" -h "$DIR" -p "$PORT" -U postgres -Atc 'select sum(i * i) from generate_series(1, 20000) i' postgres ;;
    esac ;;
*" mariadb")
    case $1 in
    program) command -v mariadbd ;;
    prepare) mariadb-install-db --no-defaults --datadir="$DIR/data" --user=root --auth-root-authentication-method=normal > /dev/null ;;
    start) exec mariadbd --no-defaults --datadir="$DIR/data" --user=root --socket="$DIR/s" --skip-networking ;;
    ask) exec mariadb --no-defaults --socket="$DIR/s" -u root -N -e 'select sum(seq * seq) from seq_1_to_20000' mysql ;;
    esac ;;
*" go")
    case $1 in
    program) echo "$DIR/serve" ;;
    prepare) cat > "$DIR/serve.go" <<'END'
package main

import ("fmt"; "net/http"; "os")

func main() {
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "hello") })
	panic(http.ListenAndServe("127.0.0.1:" + os.Getenv("PORT"), nil))
}
END
        GOFLAGS=-mod=mod GO111MODULE=off GOCACHE="$DIR/cache" HOME="$DIR" go build -o "$DIR/serve" "$DIR/serve.go" ;;
    start) exec "$DIR/serve" ;;
    ask) web ;;
    esac ;;
*" node")
    case $1 in
    program) readlink -f "$(command -v node)" ;;
    prepare) echo 'require("http").createServer((q, r) => r.end("hello")).listen(+process.env.PORT, "127.0.0.1")' > "$DIR/serve.js" ;;
    start) exec node "$DIR/serve.js" ;;
    ask) web ;;
    esac ;;
*" java")
    case $1 in
    program) ls "$(dirname "$(readlink -f "$(command -v java)")")/../lib/server/libjvm.so" ;;
    prepare) cat > "$DIR/Serve.java" <<'END'
import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;

public class Serve {
    public static void main(String[] args) throws Exception {
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(System.getenv("PORT"))), 0);
        server.createContext("/", exchange -> {
            byte[] body = "hello\n".getBytes();
            exchange.sendResponseHeaders(200, body.length);
            exchange.getResponseBody().write(body);
            exchange.close();
        });
        server.start();
    }
}
END
        javac -d "$DIR" "$DIR/Serve.java" ;;
    start) exec java -cp "$DIR" Serve ;;
    ask) web ;;
    esac ;;
*" python")
    case $1 in
    program) readlink -f /usr/bin/python3 ;;
    prepare) echo hello > "$DIR/hello.txt" ;;
    start) exec /usr/bin/python3 -m http.server -b 127.0.0.1 -d "$DIR" "$PORT" ;;
    ask) web ;;
    esac ;;
*" php")
    case $1 in
    program) readlink -f "$(command -v php)" ;;
    prepare) echo '<?php echo "hello ", array_sum(array_map(fn($i) => $i * $i, range(1, 5000)));' > "$DIR/index.php" ;;
    start) exec php -S "127.0.0.1:$PORT" "$DIR/index.php" ;;
    ask) web ;;
    esac ;;
*) echo "services.sh: no service $2" >&2; exit 2 ;;
esac
