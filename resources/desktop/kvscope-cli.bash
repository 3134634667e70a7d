# Completion of kvscope-cli for bash. Subcommands and options are those that the program itself prints with --help.
_kvscope_cli() {
    local word=${COMP_WORDS[COMP_CWORD]} program=${COMP_WORDS[0]} command='' i
    for ((i = 1; i < COMP_CWORD; ++i)); do
        case ${COMP_WORDS[i]} in
        -*) ;;
        *) command=${COMP_WORDS[i]}; break ;;
        esac
    done
    if [ -z "$command" ] && [[ $word != -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$("$program" --help 2>/dev/null | awk '/^Subcommands:/ { on = 1; next } on && /^  [a-z]/ { print $1 }')" -- "$word")
        return
    fi
    if [[ $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$("$program" ${command:+"$command"} --help 2>/dev/null | grep -oE '(^|[ ,])--?[a-z][a-z0-9-]*' | tr -d ' ,' | sort -u)" -- "$word")
        return
    fi
    if [ "${COMP_WORDS[COMP_CWORD - 1]}" = --method ]; then
        mapfile -t COMPREPLY < <(compgen -W "$("$program" methods 2>/dev/null | awk '/^[a-z]/ { print $1 }')" -- "$word")
        return
    fi
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
}
complete -o filenames -F _kvscope_cli kvscope-cli
