// Runs the tile instructions of compiled code on a processor that doesn't have them: each raises
// SIGILL, and the handler does on a TileFile what the instruction says. So the operands, encodings
// and configuration of the real code are tested where it can't run. Linux on x86-64; one thread.
#pragma once

#include <ucontext.h>

#include <csignal>

#include "emulated_tiles.h"

namespace draftproof::test {
namespace {

// An instruction: three-byte VEX prefix, opcode, ModRM, and what the operand in memory needs.
class TileInstruction {
 public:
  TileInstruction(const uint8_t* at, const greg_t* registers) : at_(at), registers_(registers) {
    known_ = at[0] == 0xc4 && (at[1] & 0x1f) == 2 && (at[2] & 0x84) == 0;  // map 0F38, W 0, L 0
    prefix_ = at[2] & 3;
    reg_ = at[4] >> 3 & 7;
    length_ = 5;
    if (in_memory()) find_address();
  }

  // False if it's none of those that the kernels use.
  bool run(TileFile& file) const {
    if (!known_) return false;
    const int second = at_[4] & 7, third = ~at_[2] >> 3 & 15;
    if (at_[3] == 0x49 && in_memory() && prefix_ == 0)
      file.configure(address_);
    else if (at_[3] == 0x49 && !in_memory() && prefix_ == 0)
      file.release();
    else if (at_[3] == 0x49 && !in_memory() && prefix_ == 3)
      file.zero(reg_);
    else if (at_[3] == 0x4b && has_index_ && prefix_ == 3)
      file.load(reg_, address_, stride_);
    else if (at_[3] == 0x4b && has_index_ && prefix_ == 2)
      file.store(reg_, address_, stride_);
    else if (at_[3] == 0x5e && !in_memory())  // tdpbuud, tdpbusd, tdpbsud, tdpbssd
      file.multiply(reg_, second, third, (prefix_ & 2) != 0, (prefix_ & 1) != 0);
    else
      return false;
    return true;
  }
  int length() const { return length_; }

 private:
  bool in_memory() const { return at_[4] < 0xc0; }
  int64_t value(int number) const {
    static constexpr int kOrder[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                       REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                       REG_R12, REG_R13, REG_R14, REG_R15};
    return registers_[kOrder[number]];
  }
  void find_address() {
    const int mod = at_[4] >> 6, rm = at_[4] & 7;
    const int more_base = at_[1] & 0x20 ? 0 : 8, more_index = at_[1] & 0x40 ? 0 : 8;
    int base = rm;
    if (rm == 4) {
      const uint8_t sib = at_[length_++];
      base = sib & 7;
      const int index = (sib >> 3 & 7) + more_index;
      has_index_ = index != 4;
      if (has_index_) stride_ = value(index) << (sib >> 6);
    }
    int32_t offset = 0;
    const bool no_base = mod == 0 && base == 5;
    if (mod == 1) {
      offset = static_cast<int8_t>(at_[length_++]);
    } else if (mod == 2 || no_base) {
      std::memcpy(&offset, at_ + length_, 4);
      length_ += 4;
    }
    int64_t from = 0;
    if (!no_base)
      from = value(base + more_base);
    else if (rm == 5)
      from = reinterpret_cast<int64_t>(at_ + length_);
    address_ = reinterpret_cast<uint8_t*>(from + offset);
  }

  const uint8_t* at_;
  const greg_t* registers_;
  bool known_;
  int prefix_, reg_, length_;
  uint8_t* address_ = nullptr;
  bool has_index_ = false;
  int64_t stride_ = 0;
};

// Tile instructions are emulated for as long as the object lives.
class TileTrap {
 public:
  static inline TileFile file;

  TileTrap() {
    struct sigaction action{};
    action.sa_sigaction = handle;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGILL, &action, &before_);
  }
  ~TileTrap() { sigaction(SIGILL, &before_, nullptr); }
  TileTrap(const TileTrap&) = delete;
  TileTrap& operator=(const TileTrap&) = delete;

 private:
  static void handle(int, siginfo_t*, void* context) {
    greg_t* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
    const TileInstruction instruction(reinterpret_cast<const uint8_t*>(registers[REG_RIP]),
                                      registers);
    if (instruction.run(file))
      registers[REG_RIP] += instruction.length();
    else
      std::signal(SIGILL, SIG_DFL);  // not ours: it ends the program when it's tried again
  }

  struct sigaction before_{};
};

}  // namespace
}  // namespace draftproof::test
