module github.com/thaw-dev/thaw/deploy/clients/go

go 1.27.0

toolchain go1.27.3

require (
	github.com/openai/openai-go v1.12.0
	github.com/sashabaranov/go-openai v1.43.0
)

require (
	github.com/tidwall/gjson v1.14.4 // indirect
	github.com/tidwall/match v1.1.1 // indirect
	github.com/tidwall/pretty v1.2.1 // indirect
	github.com/tidwall/sjson v1.2.5 // indirect
)
