// Fuzzes what a peer of a rail may say before it is trusted: addresses, greetings, offers, last
// words and control messages. What is understood must survive being said again.
#include <cstring>
#include <string>

#include "plugin/rail/messages.h"

using namespace tide::rail;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const std::span<const uint8_t> bytes(data + 1, size - 1);
  switch (data[0] % 6) {
    case 0:
      if (const auto decoded = decode_hello(bytes)) {
        Hello self;
        self.pairs.resize(2);
        refusal(*decoded, self);
        if (!decoded->foreign && decoded->hello.wire_version == kWireVersion) {
          const auto again = decode_hello(encode(decoded->hello));
          if (!again || again->hello.pairs.size() != decoded->hello.pairs.size() ||
              again->hello.host != decoded->hello.host) {
            __builtin_trap();
          }
        }
      }
      break;
    case 1:
      if (const auto offer = decode_offer(bytes)) {
        const auto again = decode_offer(encode(*offer));
        if (!again || again->generation != offer->generation) __builtin_trap();
      }
      break;
    case 2:
      if (const auto abort = decode_abort(bytes)) {
        for (const char c : abort->text) {
          if (c < ' ' || c > '~') __builtin_trap();
        }
        if (decode_abort(encode(*abort))->text != abort->text) __builtin_trap();
      }
      break;
    case 3:
      if (const auto number = decode_number(bytes)) {
        if (decode_number(encode_number(*number)) != number) __builtin_trap();
      }
      break;
    case 4: {
      const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      if (const auto address = decode_address(text)) {
        const auto again = decode_address(encode(*address));
        if (!again || again->nonce != address->nonce) __builtin_trap();
      }
      break;
    }
    case 5:
      if (const auto control = decode_control(bytes)) {
        uint8_t again[kControlBytes];
        encode(*control, again);
        const auto twice = decode_control(again);
        if (!twice || twice->kind != control->kind || twice->oldest != control->oldest ||
            twice->exchange != control->exchange || twice->rounds != control->rounds) {
          __builtin_trap();
        }
      }
  }
  return 0;
}
