// This file makes the environment and the command line of a container.

package pods

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/hawser-project/hawser/node/downward"
	"github.com/hawser-project/hawser/node/volumes"
)

// apiServerVars returns the variables by which programs in a pod find the API server, at
// HOST:PORT. client-go reads them to detect that it runs in a cluster.
func apiServerVars(apiServer string) (map[string]string, error) {
	env := map[string]string{}
	if apiServer == "" {
		return env, nil
	}
	host, port, err := net.SplitHostPort(apiServer)
	if err != nil {
		return nil, fmt.Errorf("address of the API server: %w", err)
	}
	env["KUBERNETES_SERVICE_HOST"], env["KUBERNETES_SERVICE_PORT"], env["KUBERNETES_SERVICE_PORT_HTTPS"] = host, port, port
	return env, nil
}

// environment resolves the variables of a container. Later definitions replace
// earlier ones, the first of which are env's; $(VAR) in a value refers to those defined
// before it. It changes env and returns it.
func environment(ctx context.Context, objects volumes.Objects, vols *volumes.Set, pod *corev1.Pod, c *corev1.Container, facts downward.Facts, env map[string]string) (map[string]string, error) {
	for _, from := range c.EnvFrom {
		if err := envFrom(ctx, objects, pod.Namespace, from, env); err != nil {
			return nil, err
		}
	}
	for i := range c.Env {
		e := &c.Env[i]
		if e.ValueFrom == nil {
			env[e.Name] = expand(e.Value, env)
			continue
		}
		value, ok, err := valueFrom(ctx, objects, vols, pod, c, e.ValueFrom, facts)
		if err != nil {
			return nil, err
		}
		if ok {
			env[e.Name] = value
		}
	}
	return env, nil
}

func envFrom(ctx context.Context, objects volumes.Objects, namespace string, from corev1.EnvFromSource, env map[string]string) error {
	var (
		data map[string]string
		err  error
		opt  *bool
	)
	switch {
	case from.ConfigMapRef != nil:
		opt = from.ConfigMapRef.Optional
		var cm *corev1.ConfigMap
		if cm, err = objects.ConfigMap(ctx, namespace, from.ConfigMapRef.Name); err == nil {
			data = cm.Data
		}
	case from.SecretRef != nil:
		opt = from.SecretRef.Optional
		var s *corev1.Secret
		if s, err = objects.Secret(ctx, namespace, from.SecretRef.Name); err == nil {
			data = text(s.Data)
		}
	default:
		return errors.New("envFrom names neither a configMap nor a secret")
	}
	if apierrors.IsNotFound(err) && isTrue(opt) {
		return nil
	}
	if err != nil {
		return err
	}
	for k, v := range data {
		// A key that is no valid variable name is left out, as in Kubernetes.
		if name := from.Prefix + k; len(validation.IsRelaxedEnvVarName(name)) == 0 {
			env[name] = v
		}
	}
	return nil
}

func text(data map[string][]byte) map[string]string {
	m := make(map[string]string, len(data))
	for k, v := range data {
		m[k] = string(v)
	}
	return m
}

func isTrue(b *bool) bool { return b != nil && *b }

// valueFrom resolves one reference. ok is false if it is optional and its object or
// key does not exist.
func valueFrom(ctx context.Context, objects volumes.Objects, vols *volumes.Set, pod *corev1.Pod, c *corev1.Container,
	src *corev1.EnvVarSource, facts downward.Facts,
) (value string, ok bool, err error) {
	switch {
	case src.FieldRef != nil:
		value, err = downward.Field(pod, facts, src.FieldRef.FieldPath)
		return value, err == nil, err
	case src.ResourceFieldRef != nil:
		value, err = downward.Resource(pod, facts, c.Name, src.ResourceFieldRef)
		return value, err == nil, err
	case src.ConfigMapKeyRef != nil:
		ref := src.ConfigMapKeyRef
		cm, err := objects.ConfigMap(ctx, pod.Namespace, ref.Name)
		if err != nil {
			return "", false, unlessOptional(err, ref.Optional)
		}
		if value, ok = cm.Data[ref.Key]; !ok && !isTrue(ref.Optional) {
			return "", false, fmt.Errorf("couldn't find key %s in ConfigMap %s/%s", ref.Key, pod.Namespace, ref.Name)
		}
		return value, ok, nil
	case src.SecretKeyRef != nil:
		ref := src.SecretKeyRef
		s, err := objects.Secret(ctx, pod.Namespace, ref.Name)
		if err != nil {
			return "", false, unlessOptional(err, ref.Optional)
		}
		data, ok := s.Data[ref.Key]
		if !ok && !isTrue(ref.Optional) {
			return "", false, fmt.Errorf("couldn't find key %s in Secret %s/%s", ref.Key, pod.Namespace, ref.Name)
		}
		return string(data), ok, nil
	case src.FileKeyRef != nil:
		return fileKey(vols, pod, src.FileKeyRef)
	}
	return "", false, errors.New("valueFrom names no source this node supports: use fieldRef, resourceFieldRef, configMapKeyRef, secretKeyRef or fileKeyRef")
}

func unlessOptional(err error, optional *bool) error {
	if apierrors.IsNotFound(err) && isTrue(optional) {
		return nil
	}
	return err
}

// flat lists an environment as KEY=VALUE, sorted.
func flat(env map[string]string) []string {
	list := make([]string, 0, len(env))
	for _, k := range slices.Sorted(maps.Keys(env)) {
		list = append(list, k+"="+env[k])
	}
	return list
}

// expand replaces $(NAME) by the value of the variable, where there is one, and $$
// by $. Everything else stays as it is, $(NAME) of an unknown variable too.
func expand(s string, env map[string]string) string {
	return expandBy(s, func(name string) (string, bool) {
		value, ok := env[name]
		return value, ok
	})
}

// expandPath is expand for a part of a path, in which every variable has a value: without
// one it would be another path.
func expandPath(s string, env map[string]string) (string, error) {
	var missing []string
	path := expandBy(s, func(name string) (string, bool) {
		value := env[name]
		if value == "" {
			missing = append(missing, name)
		}
		return value, true
	})
	if len(missing) > 0 {
		return "", fmt.Errorf("subPathExpr %q: missing value for %s", s, strings.Join(missing, ", "))
	}
	return path, nil
}

func expandBy(s string, lookup func(name string) (string, bool)) string {
	var b strings.Builder
	for {
		i := strings.IndexByte(s, '$')
		if i < 0 || i+1 == len(s) {
			b.WriteString(s)
			return b.String()
		}
		b.WriteString(s[:i])
		s = s[i:]
		end := strings.IndexByte(s, ')')
		switch {
		case s[1] == '$':
			b.WriteByte('$')
			s = s[2:]
		case s[1] != '(' || end < 0:
			b.WriteByte('$')
			s = s[1:]
		default:
			value, ok := lookup(s[2:end])
			if !ok {
				value = s[:end+1]
			}
			b.WriteString(value)
			s = s[end+1:]
		}
	}
}

// commandLine returns what to execute. Images are not unpacked here, so there is
// no entry point to fall back to when the container has no command.
func commandLine(c *corev1.Container, env map[string]string) ([]string, error) {
	if len(c.Command) == 0 {
		return nil, fmt.Errorf("container %q has no command: this node runs commands of its own machine and takes none from image %q, so set command (kubectl run: --command)", c.Name, c.Image)
	}
	argv := make([]string, 0, len(c.Command)+len(c.Args))
	argv = append(argv, expandAll(c.Command, env)...)
	return append(argv, expandAll(c.Args, env)...), nil
}

func expandAll(list []string, env map[string]string) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = expand(s, env)
	}
	return out
}

// probeCommand is the command of a probe with the variables that the container's definition gives
// a value. One whose value is elsewhere is empty, as for the kubelet.
func probeCommand(c *corev1.Container, argv []string) []string {
	env := make(map[string]string, len(c.Env))
	for _, e := range c.Env {
		env[e.Name] = e.Value
	}
	return expandAll(argv, env)
}
