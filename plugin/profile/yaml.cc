// See yaml.h.
#include "plugin/profile/yaml.h"

#include <yaml.h>

#include <algorithm>
#include <new>
#include <utility>

#include "plugin/profile/errors.h"

namespace tide::profile {
namespace {

class Event {
 public:
  Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { yaml_event_delete(&event_); }
  yaml_event_t* get() { return &event_; }
  const yaml_event_t* operator->() const { return &event_; }

 private:
  yaml_event_t event_ = {};  // no event: nothing to free
};

class Parser {
 public:
  Parser(std::string_view text, const std::string& path) : text_(text), path_(path) {
    if (yaml_parser_initialize(&parser_) == 0) throw std::bad_alloc();
    yaml_parser_set_encoding(&parser_, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser_, reinterpret_cast<const unsigned char*>(text.data()),
                                 text.size());
  }
  Parser(const Parser&) = delete;
  Parser& operator=(const Parser&) = delete;
  ~Parser() { yaml_parser_delete(&parser_); }

  YamlNode document() {
    YamlNode root;
    root.kind = YamlNode::Kind::kMap;
    root.line = root.column = 1;
    bool seen = false;
    for (;;) {
      Event event;
      next(&event);
      if (event->type == YAML_STREAM_END_EVENT) return root;
      if (event->type == YAML_STREAM_START_EVENT || event->type == YAML_DOCUMENT_END_EVENT) {
        continue;
      }
      // A document starts.
      if (std::exchange(seen, true)) {
        fail(event->start_mark, "a second document begins here; a profile is one document");
      }
      Event first;
      next(&first);
      root = node(first, 1);
      if (root.null()) root.kind = YamlNode::Kind::kMap;
    }
  }

 private:
  [[noreturn]] void fail(size_t line, size_t column, const std::string& what) const {
    throw Errors(
        {path_ + ":" + std::to_string(line + 1) + ":" + std::to_string(column + 1) + ": " + what});
  }
  [[noreturn]] void fail(const yaml_mark_t& mark, const std::string& what) const {
    fail(mark.line, mark.column, what);
  }

  void next(Event* event) {
    if (yaml_parser_parse(&parser_, event->get()) != 0) return;
    if (parser_.error == YAML_MEMORY_ERROR) throw std::bad_alloc();
    const std::string problem = parser_.problem == nullptr ? "not YAML" : parser_.problem;
    if (parser_.error == YAML_READER_ERROR) {
      // The reader works ahead of the parser, whose mark is somewhere before.
      const std::string_view before = text_.substr(0, parser_.problem_offset);
      const size_t line = static_cast<size_t>(std::count(before.begin(), before.end(), '\n'));
      const size_t begin = line == 0 ? 0 : before.rfind('\n') + 1;
      const auto characters =
          std::count_if(before.begin() + static_cast<std::ptrdiff_t>(begin), before.end(),
                        [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
      fail(line, static_cast<size_t>(characters), problem + "; a profile is UTF-8 text");
    }
    std::string context = parser_.context == nullptr ? "" : std::string(", ") + parser_.context;
    if (!context.empty() && parser_.context_mark.line != parser_.problem_mark.line) {
      context += " from line " + std::to_string(parser_.context_mark.line + 1);
    }
    fail(parser_.problem_mark,
         problem + context +
             (indented_by_tab(parser_.problem_mark.line) ? "; indent with blanks, not with tabs"
                                                         : ""));
  }

  bool indented_by_tab(size_t line) const {
    size_t begin = 0;
    for (; line > 0; --line) begin = text_.find('\n', begin) + 1;
    const size_t end = text_.find_first_not_of(" \t", begin);
    return text_.substr(begin, end - begin).find('\t') != std::string_view::npos;
  }

  void plain_only(const Event& event, const unsigned char* anchor, const unsigned char* tag) const {
    if (anchor != nullptr) {
      fail(event->start_mark, "anchors and aliases are not allowed; write the value out");
    }
    if (tag != nullptr) fail(event->start_mark, "tags are not allowed; leave it out");
  }

  // The node that `event` begins.
  YamlNode node(const Event& event, int depth) {
    const yaml_mark_t mark = event->start_mark;
    if (depth > kMaxDepth) {
      fail(mark, "nested deeper than " + std::to_string(kMaxDepth) + " levels");
    }
    YamlNode result;
    result.line = static_cast<int>(mark.line) + 1;
    result.column = static_cast<int>(mark.column) + 1;
    switch (event->type) {
      case YAML_SCALAR_EVENT: {
        const auto& scalar = event->data.scalar;
        plain_only(event, scalar.anchor, scalar.tag);
        result.text.assign(reinterpret_cast<const char*>(scalar.value), scalar.length);
        result.plain = scalar.style == YAML_PLAIN_SCALAR_STYLE;
        return result;
      }
      case YAML_SEQUENCE_START_EVENT:
        plain_only(event, event->data.sequence_start.anchor, event->data.sequence_start.tag);
        result.kind = YamlNode::Kind::kList;
        for (;;) {
          Event item;
          next(&item);
          if (item->type == YAML_SEQUENCE_END_EVENT) return result;
          result.items.push_back(node(item, depth + 1));
        }
      case YAML_MAPPING_START_EVENT:
        plain_only(event, event->data.mapping_start.anchor, event->data.mapping_start.tag);
        result.kind = YamlNode::Kind::kMap;
        for (;;) {
          Event key;
          next(&key);
          if (key->type == YAML_MAPPING_END_EVENT) return result;
          YamlNode name = node(key, depth + 1);
          if (name.kind != YamlNode::Kind::kScalar) fail(key->start_mark, "a key must be a word");
          Event value;
          next(&value);
          result.entries.push_back({std::move(name), node(value, depth + 1)});
        }
      default:  // nothing else begins a node but an alias
        fail(mark, "anchors and aliases are not allowed; write the value out");
    }
  }

  std::string_view text_;
  const std::string& path_;
  yaml_parser_t parser_;
};

}  // namespace

YamlNode parse_yaml(std::string_view text, const std::string& path) {
  if (text.size() > kMaxFileBytes) {
    throw Errors({path + ": " + std::to_string(text.size()) + " bytes; a profile has at most " +
                  std::to_string(kMaxFileBytes)});
  }
  return Parser(text, path).document();
}

}  // namespace tide::profile
