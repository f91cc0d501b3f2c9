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

// maxArguments is how much the variables and arguments of a container take together, in bytes. The
// kernel executes no command with more while the limit of the stack is the usual 8 MiB.
const maxArguments = 2 << 20

var errTooLong = errors.New("variables and arguments of a container take more than 2 MiB together: shorten them")

// variables are what $(NAME) in the definition of a container refers to.
type variables struct {
	values map[string]string
	room   int // how many bytes further values and arguments may take
}

// newVariables begins with values, which it changes.
func newVariables(values map[string]string) *variables {
	return &variables{values: values, room: maxArguments}
}

// take makes room smaller by n.
func (v *variables) take(n int) error {
	if n > v.room {
		return errTooLong
	}
	v.room -= n
	return nil
}

// set gives a variable a value that refers to no other, in place of the one it has.
func (v *variables) set(name, value string) error {
	if old, ok := v.values[name]; ok {
		v.room += len(name) + len(old)
		delete(v.values, name)
	}
	if err := v.take(len(name) + len(value)); err != nil {
		return fmt.Errorf("variable %q: %w", name, err)
	}
	v.values[name] = value
	return nil
}

// environment adds the variables of a container. Later definitions replace earlier ones, the first
// of which vars has; $(VAR) in a value refers to those defined before it.
func environment(ctx context.Context, objects volumes.Objects, vols *volumes.Set, pod *corev1.Pod, c *corev1.Container, facts downward.Facts, vars *variables) error {
	for _, from := range c.EnvFrom {
		if err := envFrom(ctx, objects, pod.Namespace, from, vars); err != nil {
			return err
		}
	}
	for i := range c.Env {
		e := &c.Env[i]
		if e.ValueFrom == nil {
			value, err := vars.expand(e.Value)
			if err != nil {
				return fmt.Errorf("variable %q: %w", e.Name, err)
			}
			vars.room += len(value) // set takes it
			if err = vars.set(e.Name, value); err != nil {
				return err
			}
			continue
		}
		value, ok, err := valueFrom(ctx, objects, vols, pod, c, e.ValueFrom, facts)
		if err == nil && ok {
			err = vars.set(e.Name, value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func envFrom(ctx context.Context, objects volumes.Objects, namespace string, from corev1.EnvFromSource, vars *variables) error {
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
			if err := vars.set(name, v); err != nil {
				return err
			}
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
func (v *variables) expand(s string) (string, error) {
	return v.expandBy(s, func(name string) (string, bool) {
		value, ok := v.values[name]
		return value, ok
	})
}

// expandPath is expand for a part of a path, in which every variable has a value: without
// one it would be another path.
func (v *variables) expandPath(s string) (string, error) {
	var missing []string
	path, err := v.expandBy(s, func(name string) (string, bool) {
		value := v.values[name]
		if value == "" {
			missing = append(missing, name)
		}
		return value, true
	})
	if err == nil && len(missing) > 0 {
		err = fmt.Errorf("missing value for %s", strings.Join(missing, ", "))
	}
	if err != nil {
		return "", fmt.Errorf("subPathExpr %q: %w", s, err)
	}
	return path, nil
}

// expandBy takes room for each part before it adds that: a short definition can stand for more than
// there is memory.
func (v *variables) expandBy(s string, lookup func(name string) (string, bool)) (string, error) {
	var b strings.Builder
	closes := strings.LastIndexByte(s, ')') // is found once: to look from each "$(" takes quadratic time
	for s != "" {
		part, n := firstPart(s, closes >= 0, lookup)
		if err := v.take(len(part)); err != nil {
			return "", err
		}
		b.WriteString(part)
		s, closes = s[n:], closes-n
	}
	return b.String(), nil
}

// firstPart returns what the first n bytes of s, which is not empty, expand to. closes says whether
// there is a ')' in s.
func firstPart(s string, closes bool, lookup func(name string) (string, bool)) (part string, n int) {
	i := strings.IndexByte(s, '$')
	switch {
	case i < 0 || i+1 == len(s):
		return s, len(s)
	case i > 0:
		return s[:i], i
	case s[1] == '$':
		return "$", 2
	case s[1] != '(' || !closes:
		return "$", 1
	}
	end := strings.IndexByte(s, ')')
	if value, ok := lookup(s[2:end]); ok {
		return value, end + 1
	}
	return s[:end+1], end + 1
}

// commandLine returns what to execute. Images are not unpacked here, so there is
// no entry point to fall back to when the container has no command.
func commandLine(c *corev1.Container, vars *variables) ([]string, error) {
	if len(c.Command) == 0 {
		return nil, fmt.Errorf("container %q has no command: this node runs commands of its own machine and takes none from image %q, so set command (kubectl run: --command)", c.Name, c.Image)
	}
	return vars.expandAll(slices.Concat(c.Command, c.Args))
}

func (v *variables) expandAll(list []string) ([]string, error) {
	out := make([]string, len(list))
	for i, s := range list {
		var err error
		if out[i], err = v.expand(s); err != nil {
			return nil, fmt.Errorf("argument %d: %w", i, err)
		}
	}
	return out, nil
}

// probeCommand is the command of a probe with the variables that the container's definition gives
// a value. One whose value is elsewhere is empty, as for the kubelet.
func probeCommand(c *corev1.Container, argv []string) ([]string, error) {
	values := make(map[string]string, len(c.Env))
	for _, e := range c.Env {
		values[e.Name] = e.Value
	}
	return newVariables(values).expandAll(argv)
}
