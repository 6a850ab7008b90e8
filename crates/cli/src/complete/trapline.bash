# Completion of trapline for bash. The command itself says at each TAB what may stand there.
_trapline() {
    local kind
    COMPREPLY=()
    {
        IFS= read -r kind
        mapfile -t COMPREPLY
    } < <("${1/#\~\//$HOME/}" complete bash -- "${COMP_LINE:0:COMP_POINT}" "$2" 2>/dev/null)
    case $kind in
    files) compopt -o default ;;
    directories) compopt -o dirnames ;;
    commands) mapfile -t COMPREPLY < <(compgen -c -- "$2") ;;
    esac
    case ${COMPREPLY-} in
    *[:/=]) compopt -o nospace ;;
    esac
} 2>/dev/null
complete -o nosort -F _trapline trapline 2>/dev/null || complete -F _trapline trapline
