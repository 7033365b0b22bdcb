//go:build !linux

package cli

import "errors"

func fuse() error { return errors.New("only Linux has it") }
