# Traffic of the moving picture: a crawler that does not stop, and three visitors.
ask() { curl --silent --max-time 1 --output /dev/null --interface "$1" http://192.0.2.1/; }

while true; do
    for visitor in 203.0.113.9 203.0.113.40 198.51.100.7; do
        for ((request = 0; request < 12; request++)); do ask 198.51.100.23; done
        ask "$visitor"
        sleep 0.3
    done
done
