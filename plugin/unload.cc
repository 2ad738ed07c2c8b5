// libstdc++ is part of the library, and with it a pool of 73 KB for exceptions without memory. NCCL
// may open and close plugins for every communicator: dlclose would leave a pool behind each time.
namespace __gnu_cxx {
void __freeres();  // libstdc++, libsupc++/eh_alloc.cc; declared in no header
}

// The last to run: destructors of static objects may still throw.
[[gnu::destructor(101)]] static void free_exception_pool() { __gnu_cxx::__freeres(); }
