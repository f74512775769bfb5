{{/*
The template of a pod, as YAML. The argument has `root`, `component`, `role` (empty with mode single),
`resources`, `index` (whether there is one) and `placement` (nodeSelector, tolerations, affinity,
topologySpreadConstraints).
*/}}
{{- define "streamdedup.pod" -}}
{{- with .root -}}
metadata:
  annotations:
    kubectl.kubernetes.io/default-container: streamdedup
    checksum/config: {{ include "streamdedup.config" . | sha256sum }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  labels:
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- include "streamdedup.releaseLabels" . | nindent 4 }}
    app.kubernetes.io/component: {{ $.component }}
    app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
spec:
  serviceAccountName: {{ include "streamdedup.serviceAccountName" . }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  # The drain budget, and time to close.
  terminationGracePeriodSeconds: {{ add (include "streamdedup.seconds" .Values.config.drain_budget) .Values.terminationMarginSeconds }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .Values.podSecurityContext }}
  securityContext:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if .Values.createTopics.enabled }}
  initContainers:
    - name: topics
      image: {{ include "streamdedup.image" . | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args:
        - topics
        - create
        - --config
        - /etc/streamdedup/settings/streamdedup.yaml
        - --partitions
        - {{ .Values.createTopics.partitions | quote }}
        - --replication
        - {{ .Values.createTopics.replication | quote }}
      {{- with include "streamdedup.env" . }}
      env:
        {{- . | nindent 8 }}
      {{- end }}
      {{- with $.resources }}
      resources:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .Values.securityContext }}
      securityContext:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      volumeMounts:
        {{- include "streamdedup.volumeMounts" . | nindent 8 }}
        {{- with .Values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  {{- end }}
  containers:
    - name: streamdedup
      image: {{ include "streamdedup.image" . | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args:
        - run
        - --config
        - /etc/streamdedup/settings/streamdedup.yaml
        {{- with $.role }}
        - --role
        - {{ . }}
        {{- end }}
        {{- with .Values.extraArgs }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with include "streamdedup.env" . }}
      env:
        {{- . | nindent 8 }}
      {{- end }}
      ports:
        - name: status
          containerPort: 9464
          protocol: TCP
      # The port answers before the index is open and the changelog replayed, so neither a long
      # replay nor a broker outage causes a restart. Readiness waits for both.
      startupProbe:
        httpGet:
          path: /livez
          port: status
        {{- toYaml .Values.probes.startup | nindent 8 }}
      livenessProbe:
        httpGet:
          path: /livez
          port: status
        {{- toYaml .Values.probes.liveness | nindent 8 }}
      readinessProbe:
        httpGet:
          path: /readyz
          port: status
        {{- toYaml .Values.probes.readiness | nindent 8 }}
      {{- with $.resources }}
      resources:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .Values.securityContext }}
      securityContext:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      volumeMounts:
        {{- if $.index }}
        - name: data
          mountPath: /data
        {{- end }}
        {{- include "streamdedup.volumeMounts" . | nindent 8 }}
        {{- with .Values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: tmp
      emptyDir:
        sizeLimit: {{ .Values.tmpSizeLimit }}
    - name: settings
      configMap:
        name: {{ include "streamdedup.fullname" . }}
    {{- if and $.index (not .Values.persistence.enabled) }}
    - name: data
      emptyDir:
        sizeLimit: {{ .Values.persistence.size }}
    {{- end }}
    {{- with include "streamdedup.seedSecret" . }}
    - name: seed
      secret:
        secretName: {{ . }}
        defaultMode: 0440
        items:
          - key: {{ $.root.Values.seed.key }}
            path: seed
    {{- end }}
    {{- with .Values.credentials }}
    {{- with .sasl }}
    {{- if .existingSecret }}
    - name: sasl
      secret:
        secretName: {{ .existingSecret }}
        defaultMode: 0440
        items:
          - key: {{ .passwordKey }}
            path: password
    {{- end }}
    {{- end }}
    {{- with .ca }}
    {{- if .existingSecret }}
    - name: ca
      secret:
        secretName: {{ .existingSecret }}
        defaultMode: 0440
        items:
          - key: {{ .key }}
            path: ca.crt
    {{- end }}
    {{- end }}
    {{- with .certificate }}
    {{- if .existingSecret }}
    - name: certificate
      secret:
        secretName: {{ .existingSecret }}
        defaultMode: 0440
        items:
          - key: {{ .certificateKey }}
            path: tls.crt
          - key: {{ .privateKeyKey }}
            path: tls.key
          {{- with .passwordKey }}
          - key: {{ . }}
            path: password
          {{- end }}
    {{- end }}
    {{- end }}
    {{- end }}
    {{- with .Values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $.placement.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $.placement.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $.placement.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $.placement.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}
{{- end -}}
