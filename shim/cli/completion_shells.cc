// Completion scripts for bash, zsh and fish.
#include "shim/cli/completion.h"

namespace tide::cli {
namespace {

std::string join(const std::vector<std::string>& words, const char* between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

// In single quotes, for all three shells; fish has no other escape in them that we meet.
std::string quoted(const std::string& text, const char* quote) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? quote : std::string(1, c);
  return result + "'";
}

constexpr char kPosixQuote[] = "'\\''", kFishQuote[] = "\\'";

// Paths of all subcommands as patterns of a `case`, quoted for sh: 'tide plan'|'tide run'
std::string paths(const CommandEntry& root, const char* between) {
  std::vector<std::string> all;
  for (const CommandEntry* command : flattened(root)) {
    if (command != &root) all.push_back("'" + command->path + "'");
  }
  return join(all, between);
}

std::vector<std::string> names_of_options(const CommandEntry& command) {
  std::vector<std::string> names;
  for (const OptionEntry& option : command.options) {
    if (!option.positional) names.insert(names.end(), option.names.begin(), option.names.end());
  }
  return names;
}

// Choices of a positional, then subcommands.
std::vector<std::string> words_of(const CommandEntry& command) {
  std::vector<std::string> words;
  for (const OptionEntry& option : command.options) {
    if (option.positional) words.insert(words.end(), option.choices.begin(), option.choices.end());
  }
  for (const CommandEntry& child : command.children) words.push_back(child.name);
  return words;
}

// _arguments' form: '(-q --quiet)--quiet[description]:value:(choices)'
std::string zsh_option(const OptionEntry& option, const std::string& name) {
  std::string text = name + "[";
  for (const char c : option.description) {
    if (c == '[' || c == ']' || c == '\\') text += '\\';
    text += c;
  }
  text += "]";
  if (option.takes_value) {
    text += ":" + option.value + ":" +
            (option.choices.empty() ? "_files" : "(" + join(option.choices, " ") + ")");
  }
  return quoted(text, kPosixQuote);
}

}  // namespace

std::string bash_completion(const CommandEntry& root) {
  std::string text =
      "# bash completion of tide; written by `tide completion bash`.\n"
      "_tide() {\n"
      "  local path=tide words= i\n"
      "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}\n"
      "  COMPREPLY=()\n"
      "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
      "    case \"$path ${COMP_WORDS[i]}\" in\n"
      "      " +
      paths(root, "|") +
      ") path=\"$path ${COMP_WORDS[i]}\" ;;\n"
      "      'tide run --')\n"
      "        [ $((i + 1)) = \"$COMP_CWORD\" ] && COMPREPLY=($(compgen -c -- \"$current\"))\n"
      "        return ;;\n"
      "    esac\n"
      "  done\n"
      "  case \"$path $previous\" in\n";
  for (const CommandEntry* command : flattened(root)) {
    for (const OptionEntry& option : command->options) {
      if (option.positional || !option.takes_value) continue;
      std::vector<std::string> patterns;
      for (const std::string& name : option.names) {
        patterns.push_back("'" + command->path + " " + name + "'");
      }
      text += "    " + join(patterns, "|") + ")\n";
      if (!option.choices.empty()) {
        text +=
            "      COMPREPLY=($(compgen -W '" + join(option.choices, " ") + "' -- \"$current\"))\n";
      }
      text += "      return ;;\n";
    }
  }
  text += "  esac\n  case $path in\n";
  for (const CommandEntry* command : flattened(root)) {
    text += "    '" + command->path + "')\n      words='" + join(words_of(*command), " ") +
            "'\n      [[ $current == -* ]] && words='" + join(names_of_options(*command), " ") +
            "'\n      ;;\n";
  }
  return text +
         "  esac\n"
         "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
         "}\n"
         "complete -o bashdefault -o default -F _tide tide\n";
}

std::string zsh_completion(const CommandEntry& root) {
  std::string text =
      "#compdef tide\n"
      "# zsh completion of tide; written by `tide completion zsh`.\n"
      "_tide() {\n"
      "  local at=tide context state line\n"
      "  local -i i last=1\n"
      "  typeset -A opt_args\n"
      "  for ((i = 2; i < CURRENT; ++i)); do\n"
      "    case \"$at $words[i]\" in\n"
      "      " +
      paths(root, "|") +
      ") at=\"$at $words[i]\" last=i ;;\n"
      "      'tide run --')\n"
      "        shift $i words\n"
      "        (( CURRENT -= i ))\n"
      "        _normal\n"
      "        return ;;\n"
      "    esac\n"
      "  done\n"
      "  shift $((last - 1)) words\n"
      "  (( CURRENT -= last - 1 ))\n"
      "  case $at in\n";
  for (const CommandEntry* command : flattened(root)) {
    text += "    '" + command->path + "')\n      _arguments -s";
    for (const OptionEntry& option : command->options) {
      if (option.positional) continue;
      for (const std::string& name : option.names) {
        text += " \\\n        " + zsh_option(option, name);
      }
    }
    const std::vector<std::string> words = words_of(*command);
    if (words.empty()) {
      text += " \\\n        '*:file:_files'";
    } else {
      text +=
          " \\\n        '1: :->word' '*:file:_files'\n      [[ $state == word ]] && compadd -- " +
          join(words, " ");
    }
    text += "\n      ;;\n";
  }
  return text + "  esac\n}\n_tide \"$@\"\n";
}

std::string fish_completion(const CommandEntry& root) {
  std::string text =
      "# fish completion of tide; written by `tide completion fish`.\n"
      "function __tide_at\n"
      "  set -l path tide\n"
      "  for word in (commandline -opc)[2..-1]\n"
      "    switch \"$path $word\"\n"
      "      case " +
      paths(root, " ") +
      "\n"
      "        set path \"$path $word\"\n"
      "    end\n"
      "  end\n"
      "  test \"$path\" = \"$argv\"\n"
      "end\n";
  for (const CommandEntry* command : flattened(root)) {
    const std::string start = "complete -c tide -n '__tide_at " + command->path + "'";
    for (const CommandEntry& child : command->children) {
      text +=
          start + " -f -a " + child.name + " -d " + quoted(child.description, kFishQuote) + "\n";
    }
    for (const OptionEntry& option : command->options) {
      if (option.positional) {
        if (!option.choices.empty()) {
          text += start + " -f -a '" + join(option.choices, " ") + "'\n";
        }
        continue;
      }
      text += start;
      for (const std::string& name : option.names) {
        const bool longer = name.compare(0, 2, "--") == 0;
        text += longer ? " -l " + name.substr(2) : " -s " + name.substr(1);
      }
      if (option.takes_value) text += option.choices.empty() ? " -r" : " -x";
      if (!option.choices.empty()) text += " -a '" + join(option.choices, " ") + "'";
      text += " -d " + quoted(option.description, kFishQuote) + "\n";
    }
  }
  return text;
}

}  // namespace tide::cli
