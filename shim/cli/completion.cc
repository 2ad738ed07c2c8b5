// `tide completion`: reads CLI11's tree and prints what shells and man read.
#include "shim/cli/completion.h"

#include <iostream>
#include <memory>
#include <sstream>

#include "shim/cli/commands.h"

namespace tide::cli {
namespace {

using Writer = std::string (*)(const CommandEntry&);

// "{best,block}" of "TEXT:{best,block}"
std::vector<std::string> choices_of(const std::string& type) {
  const size_t open = type.find('{'), close = type.rfind('}');
  std::vector<std::string> choices;
  if (open == std::string::npos || close == std::string::npos || close < open) return choices;
  std::istringstream words(type.substr(open + 1, close - open - 1));
  for (std::string word; std::getline(words, word, ',');) choices.push_back(word);
  return choices;
}

OptionEntry describe(const CLI::Option& option) {
  OptionEntry entry;
  for (const std::string& name : option.get_snames()) entry.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) entry.names.push_back("--" + name);
  entry.positional = entry.names.empty();
  if (entry.positional) entry.names = {option.get_name(/*positional=*/true)};
  entry.takes_value = option.get_items_expected_max() > 0;
  const std::string type = option.get_type_name();
  entry.choices = choices_of(type);
  // "INT:POSITIVE" has a type in front, "script.py:function" is one name.
  const size_t colon = type.find(':');
  const bool typed = type.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ") == colon;
  entry.value = typed ? type.substr(0, colon) : type;
  entry.standard = option.get_default_str();
  entry.description = option.get_description();
  return entry;
}

CommandEntry describe(const CLI::App& app, const std::string& parent) {
  CommandEntry entry;
  entry.name = app.get_name();
  entry.path = parent.empty() ? entry.name : parent + " " + entry.name;
  entry.description = app.get_description();
  entry.footer = app.get_footer();
  // An option without group is hidden.
  for (const CLI::Option* option :
       app.get_options([](const CLI::Option* o) { return !o->get_group().empty(); })) {
    entry.options.push_back(describe(*option));
  }
  for (const CLI::App* child :
       app.get_subcommands([](const CLI::App* a) { return !a->get_group().empty(); })) {
    entry.children.push_back(describe(*child, entry.path));
  }
  return entry;
}

void flatten(const CommandEntry& entry, std::vector<const CommandEntry*>* all) {
  all->push_back(&entry);
  for (const CommandEntry& child : entry.children) flatten(child, all);
}

}  // namespace

std::vector<const CommandEntry*> flattened(const CommandEntry& root) {
  std::vector<const CommandEntry*> all;
  flatten(root, &all);
  return all;
}

void add_completion(CLI::App& tide) {
  static const std::map<std::string, Writer> kWriters = {{"bash", bash_completion},
                                                         {"fish", fish_completion},
                                                         {"man", manual_page},
                                                         {"zsh", zsh_completion}};
  auto kind = std::make_shared<std::string>();
  CLI::App* completion =
      tide.add_subcommand("completion", "Prints the completion script of a shell, or the man page");
  completion->add_option("kind", *kind, "for which shell; man: the page in roff")
      ->required()
      ->check(CLI::IsMember({"bash", "fish", "man", "zsh"}));
  completion->footer("source <(tide completion bash)");
  completion->callback([&tide, kind] { std::cout << kWriters.at(*kind)(describe(tide, "")); });
}

}  // namespace tide::cli
