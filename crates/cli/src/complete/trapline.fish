# Completion of trapline for fish. The command itself says at each TAB what may stand there.
function __trapline_complete
    set -l words (commandline --current-process --tokenize --cut-at-cursor)
    set -l word (commandline --current-token --cut-at-cursor)
    set -l plain (string replace --regex '^[\'"]' '' -- $word)
    set -l lines ($words[1] complete fish -- $words[2..] $plain 2>/dev/null)
    switch "$lines[1]"
        case files
            __fish_complete_path $word
        case directories
            __fish_complete_directories $word
        case commands
            complete --do-complete "$word"
        case words
            set --query lines[2]; and printf '%s\n' $lines[2..]
    end
end
complete --command trapline --no-files --keep-order --arguments '(__trapline_complete)'
