// Package kustomize embeds the Kubernetes manifests of a thaw installation as they are: the files
// in base, which are their only source, and the DaemonSet of warm interpreters; not the overlays.
package kustomize

import "embed"

// Base holds base/*.yaml. The image is named "thaw" there, as a place to put one.
//
//go:embed base/*.yaml
var Base embed.FS

// Warm is the DaemonSet of the interpreters that nodes lend to their pods, which is
// not part of base. The engine's image is named "thaw-warm" there.
//
//go:embed warm/warm.yaml
var Warm []byte
