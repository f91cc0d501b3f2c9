// Traces (OpenTelemetry): of API requests, by the library, and of each dial into a node.

package main

import (
	"context"
	"fmt"
	"net/http"
	"os"

	"github.com/spf13/pflag"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/trace"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/tracing"
	tracingapi "k8s.io/component-base/tracing/api/v1"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/kubeauth/place"
	"github.com/hawser-project/hawser/cmd/internal/setup"
	"github.com/hawser-project/hawser/server"
)

// service is what spans say they are of.
const service = "hawser"

// tracingOptions are the flags of traces, by kube-apiserver's names.
type tracingOptions struct {
	file   string
	config *tracingapi.TracingConfiguration // set by check; nil means no traces
}

func (o *tracingOptions) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.file, "tracing-config-file", "", "TracingConfiguration (apiserver.config.k8s.io/v1): where spans of API requests and of dials into nodes are sent, by OTLP over gRPC, and of how many; none without it")
}

// check reads the file.
func (o *tracingOptions) check() error {
	if o.file == "" {
		return nil
	}
	contents, err := os.ReadFile(o.file)
	if err == nil {
		o.config, err = genericoptions.ReadTracingConfiguration(o.file)
	}
	if err == nil {
		err = tracingapi.ValidateTracingConfiguration(o.config, feature.DefaultFeatureGate, nil).ToAggregate()
	}
	if err != nil {
		return fmt.Errorf("--tracing-config-file %s: %w", o.file, place.Of(contents, err))
	}
	return nil
}

// traces are where spans go. A nil one has none.
type traces struct {
	provider tracing.TracerProvider
	tracer   trace.Tracer
}

// open connects to the collector once there is something to send. What the collector does
// not take in time is dropped by the library, which keeps 2,048 spans.
func (o *tracingOptions) open(ctx context.Context) (*traces, error) {
	if o.config == nil {
		return nil, nil
	}
	provider, err := tracing.NewProvider(ctx, o.config, nil, []resource.Option{
		resource.WithAttributes(attribute.String("service.name", service), attribute.String("service.version", setup.Version())),
	})
	if err != nil {
		return nil, fmt.Errorf("--tracing-config-file %s: %w", o.file, err)
	}
	return &traces{provider, provider.Tracer(service)}, nil
}

// ofAPI is the provider for the API server.
func (t *traces) ofAPI() tracing.TracerProvider {
	if t == nil {
		return nil
	}
	return t.provider
}

// dialed is for server.Config, nil if there are no traces. The server's own probes are
// left out.
func (t *traces) dialed() func(context.Context, server.Dialed) {
	if t == nil {
		return nil
	}
	return func(ctx context.Context, d server.Dialed) {
		if auth.CallerOf(ctx).Own {
			return
		}
		_, span := t.tracer.Start(ctx, "dial", trace.WithTimestamp(d.Began), trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
			attribute.String("hawser.node", d.Node), attribute.String("hawser.target", d.Addr),
			attribute.String("hawser.transport", d.Transport), attribute.String("hawser.code", d.Code),
			attribute.String("network.transport", "tcp"),
		))
		if d.Code != "ok" {
			span.SetStatus(codes.Error, d.Code)
		}
		span.End(trace.WithTimestamp(d.Began.Add(d.Took)))
	}
}

// ofRequest is for connect.Config: dials belong to the trace that a CONNECT request names
// (traceparent, W3C Trace Context). Nil if there are no traces.
func (t *traces) ofRequest() func(context.Context, http.Header) context.Context {
	if t == nil {
		return nil
	}
	return func(ctx context.Context, h http.Header) context.Context {
		return propagation.TraceContext{}.Extract(ctx, propagation.HeaderCarrier(h))
	}
}
