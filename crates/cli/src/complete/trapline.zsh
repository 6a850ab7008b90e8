#compdef trapline
# Completion of trapline for zsh. The command itself says at each TAB what may stand there.
_trapline() {
    local kind line word
    local -a lines list open open_shown whole whole_shown
    lines=("${(@f)$(${(Q)~words[1]} complete zsh -- "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}")
    kind=$lines[1]
    case $kind in
    files) _files && return ;;
    directories) _files -/ && return ;;
    commands) _command_names -e && return ;;
    esac
    for line in "${(@)lines[2,-1]}"; do
        word=${line%%$'\t'*}
        [[ $line == *$'\t'?* ]] && line="$word -- ${line#*$'\t'}" || line=$word
        case $word in
        *[:/=]) open+=("$word") open_shown+=("$line") ;;
        *) whole+=("$word") whole_shown+=("$line") ;;
        esac
    done
    (( $#lines > 1 )) || return 1
    [[ $lines[2] == *$'\t'?* ]] && list=(-l)
    compadd -V trapline $list -S '' -d open_shown -a open
    compadd -V trapline $list -d whole_shown -a whole
}
if [ "$funcstack[1]" = "_trapline" ]; then
    _trapline "$@"
else
    compdef _trapline trapline
fi
