// Which descriptors a child of fork() has.
#include "plugin/verbs/fork.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <optional>

namespace tide::verbs {
namespace {

bool open_here(int fd) { return fcntl(fd, F_GETFD) != -1; }

// The exit status of a child that runs `body`.
int status_of_child(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Fork, ChildrenDoNotHavePrivateDescriptors) {
  const int own = open_private([] { return eventfd(0, EFD_CLOEXEC); });
  const int shared = eventfd(0, EFD_CLOEXEC);
  const int of_a_library = eventfd(0, EFD_CLOEXEC);
  std::optional<PrivateDescriptor> entry(of_a_library);
  ASSERT_TRUE(open_here(own) && open_here(shared) && open_here(of_a_library));
  auto which = [&] {
    return (open_here(own) ? 1 : 0) | (open_here(shared) ? 2 : 0) |
           (open_here(of_a_library) ? 4 : 0);
  };
  EXPECT_EQ(status_of_child(which), 2);
  EXPECT_EQ(which(), 7);
  entry.reset();
  EXPECT_EQ(status_of_child(which), 6);
  close_private(own);
  EXPECT_EQ(which(), 6);
  close(shared);
  close(of_a_library);
}

// What the child opens gets the numbers that were closed in it: its parent's owners leave it alone.
TEST(Fork, NumbersOfTheParentAreTheChildsOwn) {
  const int own = open_private([] { return eventfd(0, EFD_CLOEXEC); });
  EXPECT_EQ(status_of_child([&] {
              const int mine = eventfd(0, EFD_CLOEXEC);
              if (mine != own) return 1;
              close_private(own);
              return open_here(mine) ? 0 : 2;
            }),
            0);
  close_private(own);
}

TEST(Fork, NoneIsRemembered) {
  EXPECT_EQ(open_private([] { return -1; }), -1);
  const PrivateDescriptor none(-1);
  EXPECT_EQ(status_of_child([] { return 0; }), 0);
}

}  // namespace
}  // namespace tide::verbs
