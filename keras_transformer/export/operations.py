"""Which operations a SavedModel may consist of, and which it does."""

from typing import Any

from keras_transformer.errors import UserError

# Operations of TensorFlow itself, in every tensorflow_model_server.
CORE = frozenset(
    """
    Abs AddV2 All Any ArgMax Assert AssignVariableOp BatchMatMulV2 BiasAdd BroadcastArgs BroadcastTo
    Cast ClipByValue ConcatV2 Const Cos Cumsum DisableCopyOnRead Equal Erf Exp ExpandDims Fill
    Floor FloorDiv FloorMod GatherNd GatherV2 Greater GreaterEqual Identity If IsFinite
    LeakyRelu Less LessEqual Log LogicalAnd LogicalNot LogicalOr MatMul Max Maximum Mean
    MergeV2Checkpoints Min Minimum Mul Neg NoOp NotEqual OnesLike Pack Pad PadV2 PartitionedCall
    Placeholder PlaceholderWithDefault Pow Prod RaggedGather RaggedRange RaggedTensorToTensor
    Range ReadVariableOp RealDiv Relu Reshape RestoreV2 ReverseV2 RightShift Rsqrt SaveV2 Select
    SelectV2 Shape ShardedFilename Sigmoid Sin Slice Softmax Sqrt Square SquaredDifference
    Squeeze StatefulPartitionedCall StatelessIf StatelessWhile StaticRegexFullMatch
    StaticRegexReplace StopGradient StridedSlice StringJoin Sub Sum Tanh TensorScatterUpdate
    Tile TopKV2 Transpose Unpack VarHandleOp Where While ZerosLike
    """.split()
)

# Those of tensorflow-text that tensorflow_model_server links.
SENTENCEPIECE = frozenset(
    ["SentencepieceOp", "SentencepieceTokenizeOp", "SentencepieceDetokenizeOp"]
)


def operations(graph_def: Any) -> list[str]:
    """The names of all operations of a GraphDef and of its functions, sorted."""
    nodes = [graph_def.node, *(function.node_def for function in graph_def.library.function)]
    functions = {function.signature.name for function in graph_def.library.function}
    return sorted({node.op for part in nodes for node in part} - functions)


def check_operations(names: list[str]) -> None:
    """Checks that a stock tensorflow_model_server has all operations.

    Raises:
        UserError: If it lacks one; all of them are named.
    """
    if unknown := sorted(set(names) - CORE - SENTENCEPIECE):
        raise UserError(
            "the SavedModel would need operations that a stock tensorflow_model_server may not "
            f"have: {', '.join(unknown)}"
        )
