# thaw and thaw-knative: two static programs and nothing else. From the top of the
# repository:
#
#   docker build -f deploy/images/thaw.Dockerfile --build-arg VERSION=$(git describe --tags --always) -t thaw-dev/thaw:VERSION .
#
# The controller, the activator, the loader and pods of the ember engine run from
# it; pods of other engines have an init container of it, or are made with
# vllm.Dockerfile.
FROM --platform=$BUILDPLATFORM golang:1.27.3 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=dev
ARG TARGETOS
ARG TARGETARCH
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -trimpath -ldflags "-X github.com/thaw-dev/thaw/platform/cli.Version=$VERSION" -o /out/ ./platform/thaw ./platform/thaw-knative

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/thaw /out/thaw-knative /
COPY LICENSE /
USER 65532:65532
ENTRYPOINT ["/thaw"]
