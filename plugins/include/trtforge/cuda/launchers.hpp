//! \file launchers.hpp
//! \brief The CUDA ops as plain C++: fields, shapes, tensors, workspace sizes and enqueue functions.
//!
//! Contracts are in docs/ops.md. Rules that every function keeps:
//! - nothing throws, allocates device memory or synchronizes; an enqueue may be captured in a CUDA graph, and the
//!   graph may be replayed after the contents of the index tensors changed;
//! - all tensor pointers are device pointers; strides are in elements; dtypes are `trtforge_dtype` codes and status
//!   codes are `trtforge_status` codes of host_abi.h;
//! - fields and shapes are checked on the host before anything is launched. What only the device knows (offsets,
//!   lengths, block tables) is checked on the device when `status` is given: a refused call then writes nothing but
//!   `status`. Without `status`, indices that break the rules give wrong numbers, but no kernel leaves its tensors.
//!
//! No CUDA header is needed to include this file.
#ifndef TRTFORGE_CUDA_LAUNCHERS_HPP
#define TRTFORGE_CUDA_LAUNCHERS_HPP

#include "trtforge/host_abi.h"

#include <cstddef>
#include <cstdint>
#include <string>

struct CUstream_st;

namespace trtforge
{
namespace cuda
{

//! The same type as cudaStream_t.
using Stream = CUstream_st*;

//! Rises when a struct or function of this header changes meaning; stamped into engines beside the source hash.
constexpr int32_t kABI = 1;

int32_t abi() noexcept;
//! SHA-256 of the sources that this library was built from (64 hexadecimal digits).
char const* sourceHash() noexcept;
//! JSON: abi, source_hash, architectures, compiler, backend ("cuda" or "host shim").
char const* info() noexcept;

//! A trtforge_status and, when it is not TRTFORGE_OK, one sentence with the offending numbers.
struct Status
{
    int32_t code{TRTFORGE_OK};
    std::string message;

    bool ok() const noexcept
    {
        return code == TRTFORGE_OK;
    }
};

//! What the launchers need to know about the GPU; ask once and keep it.
struct Device
{
    int32_t ordinal{0};
    int32_t computeCapability{0};      //!< 80, 86, 89, 90, 100, 103, 120, 121
    int32_t multiprocessors{0};
    int32_t sharedBytesPerBlock{0};    //!< with opt-in
};

Status queryDevice(int32_t ordinal, Device& device) noexcept;

//! The most multiprocessors that a GPU of a compute capability has; 0 for one that has no kernels here.
//!
//! For what is sized on one GPU and used on another of the same architecture: a workspace sized for a smaller GPU
//! (or a slice of one) would be too short for the splits of a larger one.
int32_t mostMultiprocessors(int32_t computeCapability) noexcept;

//! Words of a device status tensor (int32): code, then up to five numbers of the message.
constexpr int32_t kSTATUS_WORDS = 8;

//! The status that the device left in `words` (copied to the host by the caller) of the op named.
Status describeStatus(char const* op, int32_t const words[kSTATUS_WORDS]) noexcept;

// --- PagedAttention -----------------------------------------------------------------------------------------

//! Attributes: known when a plugin is created.
struct AttentionFields
{
    int32_t numHeads{0};
    int32_t numKvHeads{0};
    int32_t headSize{0};
    int32_t blockSize{0};
    int32_t activationDtype{TRTFORGE_BFLOAT16};
    int32_t poolDtype{TRTFORGE_BFLOAT16};
    int32_t slidingWindow{0}; //!< 0: off
    float scale{0.0F};        //!< 0: 1/sqrt(headSize)
    float softCap{0.0F};      //!< 0: off
};

//! Dimensions of one call, or the largest ones of a profile.
struct AttentionShape
{
    int64_t tokens{0};         //!< T
    int32_t requests{0};       //!< B
    int32_t maxBlocks{0};      //!< M
    int32_t numBlocks{0};      //!< N
    int32_t treeMaskWidth{0};  //!< W; 0 without a mask, 1: plain causality whatever it holds
    int32_t maxNewTokens{0};   //!< the most new tokens of a request, when the caller promises one; 0: unknown
};

struct AttentionTensors
{
    void const* query{nullptr};               //!< [T, H*E], 16-byte aligned, as are rows
    void const* key{nullptr};                 //!< [T, K*E]
    void const* value{nullptr};               //!< [T, K*E]
    void* kvPool{nullptr};                    //!< [N, 2, K, S, E], 16-byte aligned; written in place
    void* output{nullptr};                    //!< [T, H*E]
    int32_t const* queryStart{nullptr};       //!< [B+1]
    int32_t const* sequenceLengths{nullptr};  //!< [B]
    int32_t const* blockTable{nullptr};       //!< [B, M]
    uint8_t const* treeMask{nullptr};         //!< null, or [T, W]
    float const* sinks{nullptr};              //!< null, or [H]
    float const* kScale{nullptr};             //!< null (1), or one float on the device; FP8 pools only
    float const* vScale{nullptr};
    int32_t* status{nullptr};                 //!< null, or kSTATUS_WORDS on the device: the checked mode
    int64_t queryStride{0};
    int64_t keyStride{0};
    int64_t valueStride{0};
    int64_t outputStride{0};
    int64_t blockTableStride{0};
    int64_t treeMaskStride{0};
};

Status checkAttentionFields(AttentionFields const& fields) noexcept;
Status checkAttentionCall(
    AttentionFields const& fields, AttentionShape const& shape, AttentionTensors const& tensors) noexcept;

//! Bytes that pagedAttention() uses for exactly this shape (256-byte aligned base).
size_t attentionWorkspace(
    AttentionFields const& fields, AttentionShape const& shape, Device const& device) noexcept;
//! Enough for attentionWorkspace() of all shapes whose tokens, requests and maxBlocks are at most `limits`'.
size_t attentionWorkspaceBound(
    AttentionFields const& fields, AttentionShape const& limits, Device const& device) noexcept;

Status pagedAttention(AttentionFields const& fields, AttentionShape const& shape, AttentionTensors const& tensors,
    void* workspace, size_t workspaceBytes, Device const& device, Stream stream) noexcept;

// --- EagleTreeBuild -----------------------------------------------------------------------------------------

//! The most nodes of a tree, the root included.
constexpr int32_t kMAX_TREE = 64;

struct TreeFields
{
    int32_t topK{0};        //!< children drawn from each expanded node (1 to 16)
    int32_t expand{0};      //!< X: nodes expanded at each level after the first (1 to 16)
    int32_t levels{0};      //!< depth of the tree (1 to 16)
    int32_t total{0};       //!< G: nodes of the tree, root included (2 to 64)
    int32_t logitsDtype{TRTFORGE_FLOAT32};
};

//! C: candidates that the state holds over all levels, topK + (levels - 1) * expand * topK.
int32_t treeCandidates(TreeFields const& fields) noexcept;

struct TreeTensors
{
    void const* draftLogits{nullptr};        //!< [B, R, V]: R = 1 at level 0, X after it
    int64_t rowStride{0};                    //!< elements between rows of draftLogits; requests are R rows apart
    int32_t const* rootTokens{nullptr};      //!< [B]
    int32_t const* draftToTarget{nullptr};   //!< null, or [V]: target token = draft token + draftToTarget[draft token]
    int32_t const* staticParents{nullptr};   //!< null (dynamic), or [G]: parent of each node, parents first
    int32_t const* staticRanks{nullptr};     //!< [G]: which of its parent's children a node is, from 0
    int32_t* candidateTokens{nullptr};       //!< [B, C] state, in place
    int32_t* candidateParents{nullptr};      //!< [B, C] state: candidate index, -1 the root
    float* candidateScores{nullptr};         //!< [B, C] state
    int32_t* frontier{nullptr};              //!< [B, X] state: candidates that the next level expands, -1 none
    int32_t* tokens{nullptr};                //!< [B, G]
    int32_t* parents{nullptr};               //!< [B, G] index in the tree; -1 for the root and for unused nodes
    int32_t* depths{nullptr};                //!< [B, G]
    float* scores{nullptr};                  //!< [B, G]
    uint8_t* mask{nullptr};                  //!< [B, G, G] ancestor or self
    int32_t* counts{nullptr};                //!< [B] nodes in use
};

Status checkTreeFields(TreeFields const& fields) noexcept;
Status checkTreeCall(TreeFields const& fields, int32_t level, int32_t requests, int32_t vocabulary,
    TreeTensors const& tensors) noexcept;
//! The rules of a static tree, of arrays on the host: a plugin checks its fields with it once.
Status checkStaticTree(TreeFields const& fields, int32_t const* parents, int32_t const* ranks) noexcept;
//! Needs no workspace.
Status eagleTreeBuild(TreeFields const& fields, int32_t level, int32_t requests, int32_t vocabulary,
    TreeTensors const& tensors, Stream stream) noexcept;

// --- EagleAccept --------------------------------------------------------------------------------------------

struct AcceptFields
{
    int32_t total{0}; //!< G: nodes of the tree, root included (1 to 64)
    int32_t logitsDtype{TRTFORGE_FLOAT32};
};

struct AcceptTensors
{
    void const* targetLogits{nullptr};      //!< [B*G, V]: one row a node
    int64_t rowStride{0};
    int32_t const* tokens{nullptr};         //!< [B, G]
    int32_t const* parents{nullptr};        //!< [B, G]
    int32_t const* counts{nullptr};         //!< [B]
    float const* temperatures{nullptr};     //!< null (greedy), or [B]; 0 is greedy
    int64_t const* seeds{nullptr};          //!< [B]; needed with temperatures
    int32_t const* rootPositions{nullptr};  //!< [B] position of the root token in its sequence; with temperatures
    int32_t* path{nullptr};                 //!< [B, G] accepted nodes from the root on, then -1
    int32_t* lengths{nullptr};              //!< [B] nodes on the path, root included
    int32_t* emitted{nullptr};              //!< [B, G] accepted draft tokens, then the bonus token, then -1
    int32_t* bonus{nullptr};                //!< [B]
};

Status checkAcceptFields(AcceptFields const& fields) noexcept;
Status checkAcceptCall(
    AcceptFields const& fields, int32_t requests, int32_t vocabulary, AcceptTensors const& tensors) noexcept;
//! Needs no workspace.
Status eagleAccept(AcceptFields const& fields, int32_t requests, int32_t vocabulary, AcceptTensors const& tensors,
    Stream stream) noexcept;

// --- PagedKVMove --------------------------------------------------------------------------------------------

struct MoveFields
{
    int32_t numKvHeads{0};
    int32_t headSize{0};
    int32_t blockSize{0};
    int32_t poolDtype{TRTFORGE_BFLOAT16};
};

struct MoveTensors
{
    void* const* pools{nullptr};           //!< host array of device pools [N, 2, K, S, E], one a layer
    int32_t numPools{0};
    int32_t numBlocks{0};                  //!< N
    int32_t requests{0};                   //!< B
    int32_t maxBlocks{0};                  //!< M
    int32_t pathWidth{0};                  //!< G
    int32_t const* blockTable{nullptr};    //!< [B, M]
    int64_t blockTableStride{0};
    int32_t const* basePositions{nullptr}; //!< [B] position of tree node 0
    int32_t const* path{nullptr};          //!< [B, G] strictly increasing nodes, as EagleAccept gives them
    int32_t const* lengths{nullptr};       //!< [B] nodes on the path
    int32_t* status{nullptr};              //!< null, or kSTATUS_WORDS on the device
};

Status checkMoveFields(MoveFields const& fields) noexcept;
Status checkMoveCall(MoveFields const& fields, MoveTensors const& tensors) noexcept;
//! Needs no workspace.
Status pagedKvMove(MoveFields const& fields, MoveTensors const& tensors, Stream stream) noexcept;

} // namespace cuda
} // namespace trtforge

#endif // TRTFORGE_CUDA_LAUNCHERS_HPP
