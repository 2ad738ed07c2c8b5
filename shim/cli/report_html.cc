// The summary as one page: a template, the JSON of `--json`, and Chart.js. Nothing is loaded from
// elsewhere. The page builds its tables and charts from the JSON (report_page.html).
#include <string>
#include <string_view>

#include "shim/cli/report.h"

namespace tide::cli {
namespace {

constexpr char kPage[] =
#include "report_page.inc"  // shim/cli/report_page.html as a string, made by the build
    ;
// Chart.js with its licence, of the package libjs-chart.js; empty where that was not there.
constexpr char kChartJs[] =
#include "chart_js.inc"
    ;

// The text between the two marks is replaced; the template has each once.
void replace(std::string* page, std::string_view mark, std::string_view text) {
  page->replace(page->find(mark), mark.size(), text);
}

// Inside a script element only "<" could end it: JSON may say it otherwise.
std::string for_script(const std::string& json) {
  std::string text;
  for (const char c : json) {
    if (c == '<') {
      text += "\\u003c";
    } else {
      text += c;
    }
  }
  return text;
}

}  // namespace

std::string report_html(const JobReport& job) {
  std::string page = kPage;
  // From the end to the beginning: what is put in is not searched.
  replace(&page, "@CHART_JS@", kChartJs);
  replace(&page, "@REPORT@", for_script(report_json(job)));
  return page;
}

}  // namespace tide::cli
