// Package transformer is the arithmetic of a small causal language model over
// bytes: GPT-2's blocks (layer norm before attention and before the
// feed-forward part) and a head that shares the token embedding.
//
// It takes weights as plain []float32 views, so that it does not care who owns
// them: a block's weights may be gathered just before [Workspace.Block] and
// released right after it. The forward functions keep a block's input only;
// [Workspace.BlockBackward] computes the block again before it differentiates it.
//
// Gradients are added to what the given buffers hold. For equal inputs all
// results are equal bit for bit, whatever the number of workers: work is split
// over sequences and over weights, and no sum is. It takes weights that begin at
// multiples of 16 bytes, because gonum begins a dot product at such an address.
//
// Matrices are stored by rows. Matrix products are gonum's (pure Go), everything
// else is in this directory, one file a layer. The package imports gonum's
// blas packages and nothing of shardgen.
package transformer
