<?php
// Runs each line that it reads, and answers it.
echo "ready\n";
while (($line = fgets(STDIN)) !== false) {
    eval($line);
    echo "done\n";
}
