// tide(1) in roff, man(7).
#include "shim/cli/completion.h"

namespace tide::cli {
namespace {

// Text of a line: no control character at its start, hyphens that can be searched and copied.
std::string roff(const std::string& text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool at_start = i == 0 || text[i - 1] == '\n';
    if (at_start && (text[i] == '.' || text[i] == '\'')) result += "\\&";
    switch (text[i]) {
      case '\\':
        result += "\\e";
        break;
      case '-':
        result += "\\-";
        break;
      default:
        result += text[i];
    }
  }
  return result;
}

std::string bold(const std::string& text) { return "\\fB" + roff(text) + "\\fR"; }
std::string italic(const std::string& text) { return "\\fI" + roff(text) + "\\fR"; }

std::string option_text(const OptionEntry& option) {
  std::string text = ".TP\n";
  std::string heads;
  for (const std::string& name : option.names) {
    heads += (heads.empty() ? "" : ", ") + (option.positional ? italic(name) : bold(name));
  }
  text += heads;
  if (option.takes_value && !option.positional) text += " " + italic(option.value);
  std::string more;
  if (!option.choices.empty()) {
    for (const std::string& choice : option.choices) {
      more += (more.empty() ? "one of " : ", ") + bold(choice);
    }
  }
  if (!option.standard.empty())
    more += (more.empty() ? "" : "; ") + ("default " + bold(option.standard));
  text += "\n" + roff(option.description) + (more.empty() ? "" : " (" + more + ")") + "\n";
  return text;
}

// The lines of a footer, as they are.
std::string footer_text(const std::string& footer) {
  return footer.empty() ? "" : ".PP\n.nf\n" + roff(footer) + "\n.fi\n";
}

std::string command_text(const CommandEntry& command) {
  std::string text = ".SS " + roff(command.path) + "\n" + roff(command.description) + ".\n";
  for (const OptionEntry& option : command.options) text += option_text(option);
  return text + footer_text(command.footer);
}

constexpr char kEnd[] = R"(.SH ENVIRONMENT
The variables of the libraries are in configuration.md of the documentation. The command itself reads
.TP
\fBTIDE_PYTHON\fR
the python that \fBtide doctor\fR and \fBtide plan \-\-from\-torch\fR run; without it python3.
.SH FILES
.TP
\fIPREFIX/lib/tide\fR
libtide\-shim.so, libnccl\-net\-tide.so, libtide\-plan.so, and a libtide\-torch\-X.Y.Z.so for each
torch release that \fBtide build\-torch\fR was run for.
.TP
\fI~/.local/lib/tide/RELEASE\fR
the same for a user who may not write there.
.TP
\fIPREFIX/share/tide/configs\fR
tuning profiles, named by \fBTIDE_PROFILE\fR.
.SH EXAMPLES
.nf
tide build\-torch \-\-python /opt/job/bin/python
tide doctor \-\-python /opt/job/bin/python
tide run \-\-report reports \-\- torchrun \-\-nproc\-per\-node=8 train.py
.fi
)";

}  // namespace

std::string manual_page(const CommandEntry& root) {
  std::string text = ".TH TIDE 1 \"\" \"Tide " TIDE_VERSION
                     "\" \"User Commands\"\n.SH NAME\ntide \\- " +
                     roff(root.description) + "\n.SH SYNOPSIS\n";
  for (const CommandEntry& child : root.children) {
    text += bold(child.path) + " [" + italic("options") + "]" +
            (child.name == "run" ? " \\-\\- " + italic("command") : "") + "\n.br\n";
  }
  text += ".SH OPTIONS\n";
  for (const OptionEntry& option : root.options) text += option_text(option);
  text += ".SH COMMANDS\n";
  for (const CommandEntry* command : flattened(root)) {
    if (command != &root) text += command_text(*command);
  }
  text += ".SH EXIT STATUS\n" + roff(root.footer) + "\n";
  return text + kEnd;
}

}  // namespace tide::cli
